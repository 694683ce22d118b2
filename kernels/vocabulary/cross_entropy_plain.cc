#include "kernels/vocabulary/cross_entropy_plain.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/gemm/gemm_plain.h"
#include "kernels/vocabulary/cross_entropy_bf16_rows.h"
#include "kernels/vocabulary/cross_entropy_rows_plain.h"

namespace millrace {
namespace {

// The matrix products of a chunk of so many tokens.
struct ChunkPlans {
  PlainGemmPlan logits;
  PlainGemmPlan d_hidden;
  PlainGemmPlan d_weight;       // As the options' accumulate says.
  PlainGemmPlan d_weight_next;  // For all chunks but the first: accumulates.
};

int64_t LogitsStride(const PlainCrossEntropyOptions& options) {
  const int64_t rows = options.problem.vocab_rows;
  return options.type == ElementType::kFloat32 ? rows : (rows + 7) / 8 * 8;
}

absl::StatusOr<ChunkPlans> MakeChunkPlans(
    const PlainCrossEntropyOptions& options, int64_t num_tokens) {
  const CrossEntropyOptions& problem = options.problem;
  const int64_t stride = LogitsStride(options);
  PlainGemmOptions logits = {
      .shape = {.m = num_tokens,
                .n = problem.vocab_rows,
                .k = problem.hidden,
                .trans_b = true},
      .type = options.type,
      .c_stride = stride,
      .max_workspace_bytes = options.max_gemm_workspace_bytes};
  PlainGemmOptions d_hidden = {
      .shape = {.m = num_tokens, .n = problem.hidden, .k = problem.vocab_rows},
      .type = options.type,
      .a_stride = stride,
      .max_workspace_bytes = options.max_gemm_workspace_bytes};
  PlainGemmOptions d_weight = {
      .shape = {.m = problem.vocab_rows,
                .n = problem.hidden,
                .k = num_tokens,
                .trans_a = true,
                .accumulate = problem.accumulate},
      .type = options.type,
      .fp32_output = true,
      .a_stride = stride,
      .max_workspace_bytes = options.max_gemm_workspace_bytes};
  ASSIGN_OR_RETURN(PlainGemmPlan logits_plan, PlainGemmPlan::Create(logits));
  ASSIGN_OR_RETURN(PlainGemmPlan d_hidden_plan,
                   PlainGemmPlan::Create(d_hidden));
  ASSIGN_OR_RETURN(PlainGemmPlan d_weight_plan,
                   PlainGemmPlan::Create(d_weight));
  d_weight.shape.accumulate = true;
  ASSIGN_OR_RETURN(PlainGemmPlan d_weight_next_plan,
                   PlainGemmPlan::Create(d_weight));
  return ChunkPlans{std::move(logits_plan), std::move(d_hidden_plan),
                    std::move(d_weight_plan), std::move(d_weight_next_plan)};
}

int64_t GemmWorkspaceBytes(const ChunkPlans& plans) {
  return std::max({plans.logits.workspace_bytes(),
                   plans.d_hidden.workspace_bytes(),
                   plans.d_weight.workspace_bytes(),
                   plans.d_weight_next.workspace_bytes()});
}

}  // namespace

struct PlainCrossEntropyPlan::Impl {
  PlainCrossEntropyOptions options;
  int64_t chunk_tokens;
  ChunkPlans whole;                // For chunk_tokens tokens.
  std::optional<ChunkPlans> last;  // If the last chunk is smaller.

  const CrossEntropyOptions& problem() const { return options.problem; }

  const void* HiddenAt(const void* hidden, int64_t token) const {
    return static_cast<const char*>(hidden) +
           token * problem().hidden * ElementBytes(options.type);
  }

  // Workspace: losses, then the GEMMs'.
  int64_t LossesBytes() const {
    return (problem().num_tokens * static_cast<int64_t>(sizeof(double)) + 255) /
           256 * 256;
  }
  static double* Losses(void* workspace) {
    return static_cast<double*>(workspace);
  }
  void* GemmWorkspace(void* workspace) const {
    return static_cast<char*>(workspace) + LossesBytes();
  }

  // For each chunk: its logits, then rows(first token, logits), which returns a
  // Status, then rest(plans, first token).
  template <typename Rows, typename Rest>
  absl::Status ForEachChunk(const void* hidden, const void* weight,
                            const int32_t* targets, void* logits,
                            void* workspace, cudaStream_t stream,
                            const Rows& rows, const Rest& rest) const;

  absl::Status Gradient(const PlainCrossEntropyGradientArgs& args,
                        cudaStream_t stream) const;
};

template <typename Rows, typename Rest>
absl::Status PlainCrossEntropyPlan::Impl::ForEachChunk(
    const void* hidden, const void* weight, const int32_t* targets,
    void* logits, void* workspace, cudaStream_t stream, const Rows& rows,
    const Rest& rest) const {
  for (int64_t begin = 0; begin < problem().num_tokens; begin += chunk_tokens) {
    const int64_t size = std::min(chunk_tokens, problem().num_tokens - begin);
    const ChunkPlans& plans = size == chunk_tokens ? whole : *last;
    RETURN_IF_ERROR(plans.logits.Run({.c = logits,
                                      .a = HiddenAt(hidden, begin),
                                      .b = weight,
                                      .workspace = GemmWorkspace(workspace)},
                                     stream));
    RETURN_IF_ERROR(rows(
        begin, PlainLogits{.logits = logits,
                           .targets = targets + begin,
                           .num_rows = size,
                           .row_stride = LogitsStride(options),
                           .vocab_rows = problem().vocab_rows,
                           .vocab_begin = problem().vocab_begin,
                           .softcap = static_cast<float>(problem().softcap)}));
    RETURN_IF_ERROR(rest(plans, begin));
  }
  return absl::OkStatus();
}

// Covers the whole vocabulary if args.all_stats is null.
absl::Status PlainCrossEntropyPlan::Impl::Gradient(
    const PlainCrossEntropyGradientArgs& args, cudaStream_t stream) const {
  double* const losses = Losses(args.workspace);
  const int64_t stats_of_shard = problem().num_tokens * kNumCrossEntropyStats;
  const auto rows = [&](int64_t begin, const PlainLogits& logits) {
    const float* const stats =
        args.all_stats == nullptr
            ? nullptr
            : args.all_stats + begin * kNumCrossEntropyStats;
    return LaunchPlainCrossEntropyGradientRows(
        {.logits = logits,
         .losses = losses + begin,
         .all_stats = stats,
         .num_shards = args.num_shards,
         .shard_stride = stats_of_shard,
         .token_scale = problem().token_scale,
         .z_loss = problem().z_loss,
         .token_weights = args.token_weights == nullptr
                              ? nullptr
                              : args.token_weights + begin},
        options.type, stream);
  };
  const auto propagate = [&](const ChunkPlans& plans, int64_t begin) {
    void* const scratch = GemmWorkspace(args.workspace);
    RETURN_IF_ERROR(plans.d_hidden.Run(
        {.c = const_cast<void*>(HiddenAt(args.d_hidden, begin)),
         .a = args.logits,
         .b = args.weight,
         .workspace = scratch},
        stream));
    const PlainGemmPlan& d_weight =
        begin == 0 ? plans.d_weight : plans.d_weight_next;
    return d_weight.Run({.c = args.d_weight,
                         .a = args.logits,
                         .b = HiddenAt(args.hidden, begin),
                         .workspace = scratch},
                        stream);
  };
  RETURN_IF_ERROR(ForEachChunk(args.hidden, args.weight, args.targets,
                               args.logits, args.workspace, stream, rows,
                               propagate));
  if (args.token_weights != nullptr) return absl::OkStatus();
  return LaunchCrossEntropySum(
      {.loss = args.loss,
       .losses = losses,
       .num_tokens = problem().num_tokens,
       .scale = problem().token_scale * problem().loss_share,
       .device_scale = nullptr},
      stream);
}

PlainCrossEntropyPlan::PlainCrossEntropyPlan(std::unique_ptr<Impl> impl)
    : impl_(std::move(impl)) {}
PlainCrossEntropyPlan::PlainCrossEntropyPlan(PlainCrossEntropyPlan&&) noexcept =
    default;
PlainCrossEntropyPlan& PlainCrossEntropyPlan::operator=(
    PlainCrossEntropyPlan&&) noexcept = default;
PlainCrossEntropyPlan::~PlainCrossEntropyPlan() = default;

absl::StatusOr<PlainCrossEntropyPlan> PlainCrossEntropyPlan::Create(
    const PlainCrossEntropyOptions& options) {
  const CrossEntropyOptions& problem = options.problem;
  if (problem.num_tokens < 1 || problem.hidden < 1 || problem.vocab_rows < 1 ||
      problem.vocab_begin < 0 || problem.chunk_tokens < 1 ||
      !(problem.z_loss >= 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "plain cross entropy got num_tokens ", problem.num_tokens, ", hidden ",
        problem.hidden, ", vocab_rows ", problem.vocab_rows, " from ",
        problem.vocab_begin, ", chunk_tokens ", problem.chunk_tokens,
        ", z_loss ", problem.z_loss,
        "; needs at least one of each, from at least 0, z_loss at least 0"));
  }
  const int64_t chunk = std::min(problem.chunk_tokens, problem.num_tokens);
  ASSIGN_OR_RETURN(ChunkPlans whole, MakeChunkPlans(options, chunk));
  std::optional<ChunkPlans> last;
  if (problem.num_tokens % chunk != 0) {
    ASSIGN_OR_RETURN(last, MakeChunkPlans(options, problem.num_tokens % chunk));
  }
  return PlainCrossEntropyPlan(
      std::unique_ptr<Impl>(new Impl{.options = options,
                                     .chunk_tokens = chunk,
                                     .whole = std::move(whole),
                                     .last = std::move(last)}));
}

int64_t PlainCrossEntropyPlan::logits_bytes() const {
  return impl_->chunk_tokens * LogitsStride(impl_->options) *
         ElementBytes(impl_->options.type);
}

int64_t PlainCrossEntropyPlan::workspace_bytes() const {
  int64_t gemms = GemmWorkspaceBytes(impl_->whole);
  if (impl_->last) gemms = std::max(gemms, GemmWorkspaceBytes(*impl_->last));
  return impl_->LossesBytes() + gemms;
}

absl::Status PlainCrossEntropyPlan::LinearCrossEntropy(
    const PlainLinearCrossEntropyArgs& args, cudaStream_t stream) const {
  if (impl_->problem().vocab_begin != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("plain linear cross entropy needs the whole vocabulary, "
                     "but its rows begin at ",
                     impl_->problem().vocab_begin));
  }
  return impl_->Gradient({.d_hidden = args.d_hidden,
                          .d_weight = args.d_weight,
                          .loss = args.loss,
                          .hidden = args.hidden,
                          .weight = args.weight,
                          .targets = args.targets,
                          .all_stats = nullptr,
                          .num_shards = 0,
                          .logits = args.logits,
                          .workspace = args.workspace},
                         stream);
}

absl::Status PlainCrossEntropyPlan::Stats(
    const PlainCrossEntropyStatsArgs& args, cudaStream_t stream) const {
  const auto rows = [&](int64_t begin, const PlainLogits& logits) {
    return LaunchPlainCrossEntropyStatsRows(
        {.logits = logits, .stats = args.stats + begin * kNumCrossEntropyStats},
        impl_->options.type, stream);
  };
  const auto nothing = [](const ChunkPlans&, int64_t) {
    return absl::OkStatus();
  };
  return impl_->ForEachChunk(args.hidden, args.weight, args.targets,
                             args.logits, args.workspace, stream, rows,
                             nothing);
}

absl::Status PlainCrossEntropyPlan::Gradient(
    const PlainCrossEntropyGradientArgs& args, cudaStream_t stream) const {
  if (args.all_stats == nullptr) {
    return absl::InvalidArgumentError(
        "plain cross entropy gradient got no stats");
  }
  return impl_->Gradient(args, stream);
}

}  // namespace millrace
