#include "kernels/vocabulary/cross_entropy_bf16.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/vocabulary/cross_entropy_bf16_rows.h"

namespace millrace {
namespace {

constexpr int64_t kAlignment = 256;      // For each part of the workspace.
constexpr int64_t kChunkMultiple = 256;  // Fills the tiles of a GEMM.
constexpr int64_t kBytesPerLogit = 2;

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

int64_t LogitsStride(const CrossEntropyOptions& problem) {
  return RoundUp(problem.vocab_rows, 8);
}

absl::Status CheckProblem(const CrossEntropyOptions& problem) {
  if (problem.num_tokens < 1 || problem.hidden < 1 || problem.vocab_rows < 1 ||
      problem.vocab_begin < 0 || problem.chunk_tokens < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "bf16 cross entropy got num_tokens ", problem.num_tokens, ", hidden ",
        problem.hidden, ", vocab_rows ", problem.vocab_rows, " from ",
        problem.vocab_begin, ", chunk_tokens ", problem.chunk_tokens,
        "; needs at least one of each, from at least 0, chunks of at least 0"));
  }
  if (problem.hidden % 8 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("bf16 cross entropy got hidden ", problem.hidden,
                     "; needs a multiple of 8"));
  }
  if (!(problem.z_loss >= 0) || !(problem.softcap >= 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "bf16 cross entropy got z_loss ", problem.z_loss, " and softcap ",
        problem.softcap, "; both need at least 0"));
  }
  return absl::OkStatus();
}

// Chunks of equal size, but for the last, and as few as fit.
absl::StatusOr<int64_t> ChunkTokens(const CrossEntropyBf16Options& options) {
  const CrossEntropyOptions& problem = options.problem;
  const int64_t bytes_per_token = LogitsStride(problem) * kBytesPerLogit;
  const int64_t most = options.max_logits_bytes / bytes_per_token;
  const int64_t wanted = std::min(problem.chunk_tokens, problem.num_tokens);
  if (most < std::max<int64_t>(wanted, 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "bf16 cross entropy got ", options.max_logits_bytes,
        " bytes for logits; chunks of ", std::max<int64_t>(wanted, 1),
        " tokens need ", std::max<int64_t>(wanted, 1) * bytes_per_token));
  }
  if (wanted > 0) return wanted;
  const int64_t num_chunks = (problem.num_tokens + most - 1) / most;
  const int64_t even = (problem.num_tokens + num_chunks - 1) / num_chunks;
  return std::min({RoundUp(even, kChunkMultiple), most, problem.num_tokens});
}

// The matrix products of a chunk of so many tokens.
struct ChunkPlans {
  GemmBf16Plan logits;
  GemmBf16Plan d_hidden;
  GemmBf16Plan d_weight;       // As the problem's accumulate says.
  GemmBf16Plan d_weight_next;  // For all chunks but the first: accumulates.
};

absl::StatusOr<ChunkPlans> MakeChunkPlans(
    const CrossEntropyBf16Options& options, int64_t num_tokens,
    const CrossEntropyBf16Algorithms& algorithms) {
  auto with = [&](const std::optional<GemmAlgorithm>& algorithm) {
    return GemmBf16Options{
        .max_workspace_bytes = options.max_gemm_workspace_bytes,
        .algorithm = algorithm};
  };
  const CrossEntropyBf16Products shapes =
      CrossEntropyBf16ProductsOf(options.problem, num_tokens);
  GemmBf16Shape d_weight_first = shapes.d_weight;
  d_weight_first.accumulate = options.problem.accumulate;
  ASSIGN_OR_RETURN(
      GemmBf16Plan logits,
      GemmBf16Plan::Create(shapes.logits, with(algorithms.logits)));
  ASSIGN_OR_RETURN(
      GemmBf16Plan d_hidden,
      GemmBf16Plan::Create(shapes.d_hidden, with(algorithms.d_hidden)));
  ASSIGN_OR_RETURN(
      GemmBf16Plan d_weight,
      GemmBf16Plan::Create(d_weight_first, with(algorithms.d_weight)));
  ASSIGN_OR_RETURN(
      GemmBf16Plan d_weight_next,
      GemmBf16Plan::Create(shapes.d_weight, with(algorithms.d_weight)));
  return ChunkPlans{std::move(logits), std::move(d_hidden), std::move(d_weight),
                    std::move(d_weight_next)};
}

int64_t GemmWorkspaceBytes(const ChunkPlans& plans) {
  return std::max({plans.logits.workspace_bytes(),
                   plans.d_hidden.workspace_bytes(),
                   plans.d_weight.workspace_bytes(),
                   plans.d_weight_next.workspace_bytes()});
}

// Where things are in the workspace.
struct Layout {
  int64_t logits_bytes;
  int64_t losses_bytes;
  int64_t gemm_bytes;

  int64_t total() const { return logits_bytes + losses_bytes + gemm_bytes; }
  void* logits(void* workspace) const { return workspace; }
  double* losses(void* workspace) const {
    return reinterpret_cast<double*>(static_cast<char*>(workspace) +
                                     logits_bytes);
  }
  void* gemm(void* workspace) const {
    return static_cast<char*>(workspace) + logits_bytes + losses_bytes;
  }
};

Layout MakeLayout(const CrossEntropyOptions& problem, int64_t chunk_tokens,
                  int64_t gemm_bytes) {
  const int64_t losses_bytes =
      problem.num_tokens * static_cast<int64_t>(sizeof(double));
  return {
      .logits_bytes = RoundUp(
          chunk_tokens * LogitsStride(problem) * kBytesPerLogit, kAlignment),
      .losses_bytes = RoundUp(losses_bytes, kAlignment),
      .gemm_bytes = gemm_bytes};
}

const void* RowOf(const void* tensor, int64_t row, int64_t columns) {
  return static_cast<const char*>(tensor) + row * columns * kBytesPerLogit;
}
void* RowOf(void* tensor, int64_t row, int64_t columns) {
  return static_cast<char*>(tensor) + row * columns * kBytesPerLogit;
}

absl::Status CheckShards(int64_t num_shards) {
  if (num_shards >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "cross entropy got stats of ", num_shards, " shards; needs one or more"));
}

}  // namespace

CrossEntropyBf16Products CrossEntropyBf16ProductsOf(
    const CrossEntropyOptions& problem, int64_t num_tokens) {
  const int64_t stride = LogitsStride(problem);
  return {.logits = {.m = num_tokens,
                     .n = problem.vocab_rows,
                     .k = problem.hidden,
                     .trans_b = true,
                     .c_stride = stride},
          .d_hidden = {.m = num_tokens,
                       .n = problem.hidden,
                       .k = problem.vocab_rows,
                       .a_stride = stride},
          .d_weight = {.m = problem.vocab_rows,
                       .n = problem.hidden,
                       .k = num_tokens,
                       .trans_a = true,
                       .fp32_output = true,
                       .accumulate = true,
                       .a_stride = stride}};
}

struct CrossEntropyBf16Plan::Impl {
  CrossEntropyOptions problem;
  int64_t chunk_tokens;
  ChunkPlans whole;                // For chunk_tokens tokens.
  std::optional<ChunkPlans> last;  // If the last chunk is smaller.
  Layout layout;

  // One chunk and what there is of it.
  struct Chunk {
    int64_t begin;
    const ChunkPlans* plans;
    CrossEntropyRows rows;
    double* losses;
  };

  // Lets body(chunk) at each chunk in turn.
  template <typename Body>
  absl::Status ForEachChunk(const int32_t* targets, void* workspace,
                            const Body& body) const {
    for (int64_t begin = 0; begin < problem.num_tokens; begin += chunk_tokens) {
      const int64_t num_rows =
          std::min(chunk_tokens, problem.num_tokens - begin);
      RETURN_IF_ERROR(
          body(Chunk{.begin = begin,
                     .plans = num_rows == chunk_tokens ? &whole : &*last,
                     .rows = {.logits = layout.logits(workspace),
                              .targets = targets + begin,
                              .num_rows = num_rows,
                              .row_stride = LogitsStride(problem),
                              .vocab_rows = problem.vocab_rows,
                              .vocab_begin = problem.vocab_begin,
                              .softcap = static_cast<float>(problem.softcap)},
                     .losses = layout.losses(workspace) + begin}));
    }
    return absl::OkStatus();
  }

  absl::Status Logits(const Chunk& chunk, const void* hidden,
                      const void* weight, void* workspace,
                      cudaStream_t stream) const {
    return chunk.plans->logits.Run(
        {.c = chunk.rows.logits,
         .a = RowOf(hidden, chunk.begin, problem.hidden),
         .b = weight,
         .workspace = layout.gemm(workspace)},
        stream);
  }

  // From the gradient of the logits.
  template <typename Args>
  absl::Status Propagate(const Chunk& chunk, const Args& args,
                         cudaStream_t stream) const {
    RETURN_IF_ERROR(chunk.plans->d_hidden.Run(
        {.c = RowOf(args.d_hidden, chunk.begin, problem.hidden),
         .a = chunk.rows.logits,
         .b = args.weight,
         .workspace = layout.gemm(args.workspace)},
        stream));
    const GemmBf16Plan& d_weight =
        chunk.begin == 0 ? chunk.plans->d_weight : chunk.plans->d_weight_next;
    return d_weight.Run({.c = args.d_weight,
                         .a = chunk.rows.logits,
                         .b = RowOf(args.hidden, chunk.begin, problem.hidden),
                         .workspace = layout.gemm(args.workspace)},
                        stream);
  }

  CrossEntropyWeights Weights(const float* device_token_scale) const {
    return {.token_scale = static_cast<float>(problem.token_scale),
            .device_token_scale = device_token_scale,
            .z_loss = static_cast<float>(problem.z_loss)};
  }

  template <typename Args>
  absl::Status SumLosses(const Args& args, cudaStream_t stream) const {
    return LaunchCrossEntropySum(
        {.loss = args.loss,
         .losses = layout.losses(args.workspace),
         .num_tokens = problem.num_tokens,
         .scale = problem.token_scale * problem.loss_share,
         .device_scale = args.device_token_scale},
        stream);
  }
};

CrossEntropyBf16Plan::CrossEntropyBf16Plan(std::unique_ptr<Impl> impl)
    : impl_(std::move(impl)) {}
CrossEntropyBf16Plan::CrossEntropyBf16Plan(CrossEntropyBf16Plan&&) noexcept =
    default;
CrossEntropyBf16Plan& CrossEntropyBf16Plan::operator=(
    CrossEntropyBf16Plan&&) noexcept = default;
CrossEntropyBf16Plan::~CrossEntropyBf16Plan() = default;

absl::StatusOr<CrossEntropyBf16Plan> CrossEntropyBf16Plan::Create(
    const CrossEntropyBf16Options& options) {
  const CrossEntropyOptions& problem = options.problem;
  RETURN_IF_ERROR(CheckProblem(problem));
  ASSIGN_OR_RETURN(const int64_t chunk, ChunkTokens(options));
  ASSIGN_OR_RETURN(ChunkPlans whole,
                   MakeChunkPlans(options, chunk, options.algorithms));
  int64_t gemm_bytes = GemmWorkspaceBytes(whole);
  std::optional<ChunkPlans> last;
  if (problem.num_tokens % chunk != 0) {
    ASSIGN_OR_RETURN(last,
                     MakeChunkPlans(options, problem.num_tokens % chunk, {}));
    gemm_bytes = std::max(gemm_bytes, GemmWorkspaceBytes(*last));
  }
  return CrossEntropyBf16Plan(std::unique_ptr<Impl>(
      new Impl{.problem = problem,
               .chunk_tokens = chunk,
               .whole = std::move(whole),
               .last = std::move(last),
               .layout = MakeLayout(problem, chunk, gemm_bytes)}));
}

int64_t CrossEntropyBf16Plan::chunk_tokens() const {
  return impl_->chunk_tokens;
}
int64_t CrossEntropyBf16Plan::num_chunks() const {
  return (impl_->problem.num_tokens + impl_->chunk_tokens - 1) /
         impl_->chunk_tokens;
}
int64_t CrossEntropyBf16Plan::workspace_bytes() const {
  return impl_->layout.total();
}

absl::Status CrossEntropyBf16Plan::LinearCrossEntropy(
    const LinearCrossEntropyBf16Args& args, cudaStream_t stream) const {
  if (impl_->problem.vocab_begin != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("LinearCrossEntropy needs the whole vocabulary, but its "
                     "rows begin at ",
                     impl_->problem.vocab_begin));
  }
  RETURN_IF_ERROR(impl_->ForEachChunk(
      args.targets, args.workspace,
      [&](const Impl::Chunk& chunk) -> absl::Status {
        RETURN_IF_ERROR(impl_->Logits(chunk, args.hidden, args.weight,
                                      args.workspace, stream));
        RETURN_IF_ERROR(LaunchCrossEntropyFusedRows(
            {.rows = chunk.rows,
             .weights = impl_->Weights(args.device_token_scale),
             .losses = chunk.losses},
            stream));
        return impl_->Propagate(chunk, args, stream);
      }));
  return impl_->SumLosses(args, stream);
}

absl::Status CrossEntropyBf16Plan::Stats(const CrossEntropyStatsBf16Args& args,
                                         cudaStream_t stream) const {
  return impl_->ForEachChunk(
      args.targets, args.workspace,
      [&](const Impl::Chunk& chunk) -> absl::Status {
        RETURN_IF_ERROR(impl_->Logits(chunk, args.hidden, args.weight,
                                      args.workspace, stream));
        return LaunchCrossEntropyRowStats(
            {.rows = chunk.rows,
             .stats = args.stats + chunk.begin * kNumCrossEntropyStats},
            stream);
      });
}

absl::Status CrossEntropyBf16Plan::Gradient(
    const CrossEntropyGradientBf16Args& args, cudaStream_t stream) const {
  RETURN_IF_ERROR(CheckShards(args.num_shards));
  if (args.has_logits && num_chunks() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("Gradient cannot find the logits of ", num_chunks(),
                     " chunks in a workspace that holds one"));
  }
  RETURN_IF_ERROR(impl_->ForEachChunk(
      args.targets, args.workspace,
      [&](const Impl::Chunk& chunk) -> absl::Status {
        if (!args.has_logits) {
          RETURN_IF_ERROR(impl_->Logits(chunk, args.hidden, args.weight,
                                        args.workspace, stream));
        }
        RETURN_IF_ERROR(LaunchCrossEntropyRowGradients(
            {.rows = chunk.rows,
             .weights = impl_->Weights(args.device_token_scale),
             .losses = chunk.losses,
             .all_stats = args.all_stats + chunk.begin * kNumCrossEntropyStats,
             .num_shards = args.num_shards,
             .shard_stride = impl_->problem.num_tokens * kNumCrossEntropyStats,
             .token_weights = args.token_weights == nullptr
                                  ? nullptr
                                  : args.token_weights + chunk.begin},
            stream));
        return impl_->Propagate(chunk, args, stream);
      }));
  if (args.token_weights != nullptr) return absl::OkStatus();
  return impl_->SumLosses(args, stream);
}

absl::StatusOr<int64_t> MeasureCrossEntropyBf16WorkspaceBytes(
    const CrossEntropyBf16Options& options) {
  RETURN_IF_ERROR(CheckProblem(options.problem));
  ASSIGN_OR_RETURN(const int64_t chunk, ChunkTokens(options));
  return MakeLayout(options.problem, chunk, options.max_gemm_workspace_bytes)
      .total();
}

absl::StatusOr<CrossEntropyBf16Algorithms> MeasureCrossEntropyBf16(
    const CrossEntropyBf16Options& options,
    const LinearCrossEntropyBf16Args& args, int max_candidates,
    cudaStream_t stream) {
  const CrossEntropyOptions& problem = options.problem;
  RETURN_IF_ERROR(CheckProblem(problem));
  ASSIGN_OR_RETURN(const int64_t chunk, ChunkTokens(options));
  const CrossEntropyBf16Products shapes =
      CrossEntropyBf16ProductsOf(problem, chunk);
  const Layout layout =
      MakeLayout(problem, chunk, options.max_gemm_workspace_bytes);
  void* logits = layout.logits(args.workspace);
  const auto fastest =
      [&](const GemmBf16Shape& shape,
          GemmBf16Args buffers) -> absl::StatusOr<GemmAlgorithm> {
    buffers.workspace = layout.gemm(args.workspace);
    ASSIGN_OR_RETURN(
        const std::vector<GemmMeasurement> measured,
        MeasureGemmBf16(
            shape, {.max_workspace_bytes = options.max_gemm_workspace_bytes},
            absl::MakeConstSpan(&buffers, 1), max_candidates, stream));
    return measured.front().algorithm;
  };
  CrossEntropyBf16Algorithms best;
  ASSIGN_OR_RETURN(best.logits,
                   fastest(shapes.logits,
                           {.c = logits, .a = args.hidden, .b = args.weight}));
  // Gradients as they come in training: the power that a GEMM draws, and so its
  // clock, depends on the numbers.
  RETURN_IF_ERROR(LaunchCrossEntropyFusedRows(
      {.rows = {.logits = logits,
                .targets = args.targets,
                .num_rows = chunk,
                .row_stride = LogitsStride(problem),
                .vocab_rows = problem.vocab_rows,
                .vocab_begin = problem.vocab_begin},
       .weights = {.token_scale = static_cast<float>(problem.token_scale)},
       .losses = layout.losses(args.workspace)},
      stream));
  ASSIGN_OR_RETURN(best.d_hidden, fastest(shapes.d_hidden, {.c = args.d_hidden,
                                                            .a = logits,
                                                            .b = args.weight}));
  ASSIGN_OR_RETURN(best.d_weight, fastest(shapes.d_weight, {.c = args.d_weight,
                                                            .a = logits,
                                                            .b = args.hidden}));
  return best;
}

}  // namespace millrace
