#include "kernels/norm/layernorm_bf16.h"

#include "base/status_macros.h"
#include "kernels/norm/norm_bf16.cuh"
#include "kernels/norm/norm_bf16_backward.cuh"
#include "kernels/norm/norm_bf16_forward.cuh"

namespace millrace {

using gpu::NormKind;
using gpu::NormWeight;

namespace {

template <bool kResidual>
absl::Status LaunchLayerNorm(const gpu::NormForward& p, bool fp32_weight,
                             cudaStream_t stream) {
  return fp32_weight ? gpu::LaunchNormForward<NormKind::kLayer, kResidual,
                                              NormWeight::kFp32>(p, stream)
                     : gpu::LaunchNormForward<NormKind::kLayer, kResidual,
                                              NormWeight::kBf16>(p, stream);
}

}  // namespace

int64_t LayerNormBackwardBf16WorkspaceBytes(int64_t num_tokens,
                                            int64_t hidden) {
  if (!gpu::CheckNormBf16("", num_tokens, hidden, {}).ok()) return 0;
  return gpu::NormBackwardWorkspaceBytes<NormKind::kLayer>(num_tokens, hidden);
}

absl::Status LaunchLayerNormForwardBf16(const LayerNormForwardBf16Args& args,
                                        cudaStream_t stream) {
  RETURN_IF_ERROR(gpu::CheckNormBf16("LayerNorm", args.num_tokens, args.hidden,
                                     {args.y, args.x, args.weight, args.bias}));
  return LaunchLayerNorm</*kResidual=*/false>(
      {.y = args.y,
       .mean = args.mean,
       .rstd = args.rstd,
       .x = args.x,
       .weight = args.weight,
       .bias = args.bias,
       .num_tokens = args.num_tokens,
       .num_vectors = static_cast<int>(args.hidden / 8),
       .epsilon = args.epsilon,
       .amax = args.amax},
      args.fp32_weight, stream);
}

absl::Status LaunchResidualLayerNormForwardBf16(
    const ResidualLayerNormForwardBf16Args& args, cudaStream_t stream) {
  RETURN_IF_ERROR(gpu::CheckNormBf16(
      "residual LayerNorm", args.num_tokens, args.hidden,
      {args.residual, args.y, args.x, args.delta, args.weight, args.bias}));
  return LaunchLayerNorm</*kResidual=*/true>(
      {.residual = args.residual,
       .y = args.y,
       .mean = args.mean,
       .rstd = args.rstd,
       .x = args.x,
       .delta = args.delta,
       .weight = args.weight,
       .bias = args.bias,
       .num_tokens = args.num_tokens,
       .num_vectors = static_cast<int>(args.hidden / 8),
       .epsilon = args.epsilon,
       .amax = args.amax},
      args.fp32_weight, stream);
}

absl::Status LaunchLayerNormBackwardBf16(const LayerNormBackwardBf16Args& args,
                                         cudaStream_t stream) {
  RETURN_IF_ERROR(gpu::CheckNormBf16("LayerNorm backward", args.num_tokens,
                                     args.hidden,
                                     {args.d_x, args.d_y, args.x, args.weight,
                                      args.d_residual, args.workspace}));
  const gpu::NormBackward p = {.d_x = args.d_x,
                               .d_y = args.d_y,
                               .x = args.x,
                               .d_residual = args.d_residual,
                               .weight = args.weight,
                               .mean = args.mean,
                               .rstd = args.rstd,
                               .partials = static_cast<float*>(args.workspace),
                               .num_tokens = args.num_tokens,
                               .num_vectors = static_cast<int>(args.hidden / 8),
                               .amax = args.amax};
  const gpu::NormBackwardOutputs outputs = {.d_weight = args.d_weight,
                                            .d_bias = args.d_bias,
                                            .accumulate = args.accumulate};
  return args.fp32_weight
             ? gpu::LaunchNormBackward<NormKind::kLayer, NormWeight::kFp32>(
                   p, outputs, stream)
             : gpu::LaunchNormBackward<NormKind::kLayer, NormWeight::kBf16>(
                   p, outputs, stream);
}

}  // namespace millrace
