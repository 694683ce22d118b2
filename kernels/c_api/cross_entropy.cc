#include "kernels/c_api/cross_entropy.h"

#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "kernels/c_api/result.h"
#include "kernels/vocabulary/cross_entropy_bf16.h"

struct millrace_cross_entropy_plan {
  millrace::CrossEntropyBf16Plan plan;
};

namespace millrace {
namespace {

static_assert(MILLRACE_CROSS_ENTROPY_STATS == kNumCrossEntropyStats);

std::optional<GemmAlgorithm> Algorithm(const char* text) {
  if (*text == '\0') return std::nullopt;
  return GemmAlgorithm{text};
}

CrossEntropyBf16Options Options(const millrace_cross_entropy_options& options) {
  CrossEntropyBf16Options result = {
      .problem = {.num_tokens = options.num_tokens,
                  .hidden = options.hidden,
                  .vocab_rows = options.vocab_rows,
                  .vocab_begin = options.vocab_begin,
                  .chunk_tokens = options.chunk_tokens,
                  .token_scale = options.token_scale,
                  .loss_share = options.loss_share,
                  .accumulate = options.accumulate != 0,
                  .z_loss = options.z_loss},
      .max_logits_bytes = options.max_logits_bytes,
      .max_gemm_workspace_bytes = options.max_gemm_workspace_bytes};
  if (options.algorithms != nullptr) {
    result.algorithms = {.logits = Algorithm(options.algorithms->logits),
                         .d_hidden = Algorithm(options.algorithms->d_hidden),
                         .d_weight = Algorithm(options.algorithms->d_weight)};
  }
  return result;
}

LinearCrossEntropyBf16Args Args(
    const millrace_linear_cross_entropy_args& args) {
  return {.d_hidden = args.d_hidden,
          .d_weight = args.d_weight,
          .loss = args.loss,
          .hidden = args.hidden,
          .weight = args.weight,
          .targets = args.targets,
          .device_token_scale = args.device_token_scale,
          .workspace = args.workspace};
}

template <size_t kSize>
void CopyText(const std::optional<GemmAlgorithm>& algorithm,
              char (&text)[kSize]) {
  const size_t length =
      algorithm.has_value() ? algorithm->text.copy(text, kSize - 1) : 0;
  text[length] = '\0';
}

cudaStream_t Stream(void* stream) { return static_cast<cudaStream_t>(stream); }

}  // namespace
}  // namespace millrace

extern "C" {

int millrace_cross_entropy_bf16_plan_create(
    const millrace_cross_entropy_options* options,
    millrace_cross_entropy_plan** plan) {
  *plan = nullptr;
  auto created =
      millrace::CrossEntropyBf16Plan::Create(millrace::Options(*options));
  if (created.ok()) {
    *plan = new millrace_cross_entropy_plan{*std::move(created)};
  }
  return millrace::CResult(created.status());
}

void millrace_cross_entropy_bf16_plan_destroy(
    millrace_cross_entropy_plan* plan) {
  delete plan;
}

int64_t millrace_cross_entropy_bf16_plan_chunk_tokens(
    const millrace_cross_entropy_plan* plan) {
  return plan->plan.chunk_tokens();
}

int64_t millrace_cross_entropy_bf16_plan_num_chunks(
    const millrace_cross_entropy_plan* plan) {
  return plan->plan.num_chunks();
}

int64_t millrace_cross_entropy_bf16_plan_workspace_bytes(
    const millrace_cross_entropy_plan* plan) {
  return plan->plan.workspace_bytes();
}

int millrace_linear_cross_entropy_bf16(
    const millrace_cross_entropy_plan* plan,
    const millrace_linear_cross_entropy_args* args, void* stream) {
  return millrace::CResult(plan->plan.LinearCrossEntropy(
      millrace::Args(*args), millrace::Stream(stream)));
}

int millrace_cross_entropy_stats_bf16(
    const millrace_cross_entropy_plan* plan,
    const millrace_cross_entropy_stats_args* args, void* stream) {
  return millrace::CResult(plan->plan.Stats({.stats = args->stats,
                                             .hidden = args->hidden,
                                             .weight = args->weight,
                                             .targets = args->targets,
                                             .workspace = args->workspace},
                                            millrace::Stream(stream)));
}

int millrace_cross_entropy_gradient_bf16(
    const millrace_cross_entropy_plan* plan,
    const millrace_cross_entropy_gradient_args* args, void* stream) {
  return millrace::CResult(
      plan->plan.Gradient({.d_hidden = args->d_hidden,
                           .d_weight = args->d_weight,
                           .loss = args->loss,
                           .hidden = args->hidden,
                           .weight = args->weight,
                           .targets = args->targets,
                           .all_stats = args->all_stats,
                           .num_shards = args->num_shards,
                           .device_token_scale = args->device_token_scale,
                           .has_logits = args->has_logits != 0,
                           .workspace = args->workspace},
                          millrace::Stream(stream)));
}

int millrace_cross_entropy_bf16_measure(
    const millrace_cross_entropy_options* options,
    const millrace_linear_cross_entropy_args* args, int64_t max_candidates,
    millrace_cross_entropy_algorithms* algorithms, void* stream) {
  const auto measured = millrace::MeasureCrossEntropyBf16(
      millrace::Options(*options), millrace::Args(*args),
      static_cast<int>(max_candidates), millrace::Stream(stream));
  if (measured.ok()) {
    millrace::CopyText(measured->logits, algorithms->logits);
    millrace::CopyText(measured->d_hidden, algorithms->d_hidden);
    millrace::CopyText(measured->d_weight, algorithms->d_weight);
  }
  return millrace::CResult(measured.status());
}

int millrace_cross_entropy_bf16_measure_workspace_bytes(
    const millrace_cross_entropy_options* options, int64_t* workspace_bytes) {
  const auto bytes = millrace::MeasureCrossEntropyBf16WorkspaceBytes(
      millrace::Options(*options));
  if (bytes.ok()) *workspace_bytes = *bytes;
  return millrace::CResult(bytes.status());
}

int millrace_cross_entropy_loss(const millrace_cross_entropy_loss_args* args,
                                void* stream) {
  return millrace::CResult(
      millrace::LaunchCrossEntropyLoss({.loss = args->loss,
                                        .targets = args->targets,
                                        .all_stats = args->all_stats,
                                        .num_shards = args->num_shards,
                                        .num_tokens = args->num_tokens,
                                        .token_scale = args->token_scale,
                                        .loss_share = args->loss_share,
                                        .z_loss = args->z_loss},
                                       millrace::Stream(stream)));
}

int millrace_count_targets(const millrace_count_targets_args* args,
                           void* stream) {
  return millrace::CResult(
      millrace::LaunchCountTargets({.count = args->count,
                                    .reciprocal = args->reciprocal,
                                    .targets = args->targets,
                                    .num_tokens = args->num_tokens},
                                   millrace::Stream(stream)));
}

}  // extern "C"
