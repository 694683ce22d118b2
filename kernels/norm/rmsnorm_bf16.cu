#include "kernels/norm/rmsnorm_bf16.h"

#include "base/status_macros.h"
#include "kernels/norm/norm_bf16.cuh"
#include "kernels/norm/norm_bf16_backward.cuh"
#include "kernels/norm/norm_bf16_forward.cuh"

namespace millrace {

using gpu::NormKind;
using gpu::NormWeight;

namespace {

absl::Status CheckAddsOne(bool adds_one, bool fp32_weight) {
  if (!adds_one || fp32_weight) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "RMSNorm adds one to weights of fp32; got bf16");
}

template <bool kResidual>
absl::Status LaunchForward(const gpu::NormForward& p, bool fp32_weight,
                           bool adds_one, cudaStream_t stream) {
  RETURN_IF_ERROR(CheckAddsOne(adds_one, fp32_weight));
  if (adds_one) {
    return gpu::LaunchNormForward<NormKind::kRms, kResidual,
                                  NormWeight::kOnePlusFp32>(p, stream);
  }
  return fp32_weight ? gpu::LaunchNormForward<NormKind::kRms, kResidual,
                                              NormWeight::kFp32>(p, stream)
                     : gpu::LaunchNormForward<NormKind::kRms, kResidual,
                                              NormWeight::kBf16>(p, stream);
}

}  // namespace

int64_t RmsNormBackwardBf16WorkspaceBytes(int64_t num_tokens, int64_t hidden) {
  if (!gpu::CheckNormBf16("", num_tokens, hidden, {}).ok()) return 0;
  return gpu::NormBackwardWorkspaceBytes<NormKind::kRms>(num_tokens, hidden);
}

absl::Status LaunchRmsNormForwardBf16(const RmsNormForwardBf16Args& args,
                                      cudaStream_t stream) {
  RETURN_IF_ERROR(gpu::CheckNormBf16("RMSNorm", args.num_tokens, args.hidden,
                                     {args.y, args.x, args.weight}));
  return LaunchForward</*kResidual=*/false>(
      {.y = args.y,
       .rstd = args.rstd,
       .x = args.x,
       .weight = args.weight,
       .num_tokens = args.num_tokens,
       .num_vectors = static_cast<int>(args.hidden / 8),
       .epsilon = args.epsilon,
       .amax = args.amax},
      args.fp32_weight, args.adds_one, stream);
}

absl::Status LaunchResidualRmsNormForwardBf16(
    const ResidualRmsNormForwardBf16Args& args, cudaStream_t stream) {
  RETURN_IF_ERROR(gpu::CheckNormBf16(
      "residual RMSNorm", args.num_tokens, args.hidden,
      {args.residual, args.y, args.x, args.delta, args.weight}));
  return LaunchForward</*kResidual=*/true>(
      {.residual = args.residual,
       .y = args.y,
       .rstd = args.rstd,
       .x = args.x,
       .delta = args.delta,
       .weight = args.weight,
       .num_tokens = args.num_tokens,
       .num_vectors = static_cast<int>(args.hidden / 8),
       .epsilon = args.epsilon,
       .amax = args.amax},
      args.fp32_weight, args.adds_one, stream);
}

absl::Status LaunchRmsNormBackwardBf16(const RmsNormBackwardBf16Args& args,
                                       cudaStream_t stream) {
  RETURN_IF_ERROR(gpu::CheckNormBf16("RMSNorm backward", args.num_tokens,
                                     args.hidden,
                                     {args.d_x, args.d_y, args.x, args.weight,
                                      args.d_residual, args.workspace}));
  const gpu::NormBackward p = {.d_x = args.d_x,
                               .d_y = args.d_y,
                               .x = args.x,
                               .d_residual = args.d_residual,
                               .weight = args.weight,
                               .mean = nullptr,
                               .rstd = args.rstd,
                               .partials = static_cast<float*>(args.workspace),
                               .num_tokens = args.num_tokens,
                               .num_vectors = static_cast<int>(args.hidden / 8),
                               .amax = args.amax};
  const gpu::NormBackwardOutputs outputs = {.d_weight = args.d_weight,
                                            .d_bias = nullptr,
                                            .accumulate = args.accumulate};
  RETURN_IF_ERROR(CheckAddsOne(args.adds_one, args.fp32_weight));
  if (args.adds_one) {
    return gpu::LaunchNormBackward<NormKind::kRms, NormWeight::kOnePlusFp32>(
        p, outputs, stream);
  }
  return args.fp32_weight
             ? gpu::LaunchNormBackward<NormKind::kRms, NormWeight::kFp32>(
                   p, outputs, stream)
             : gpu::LaunchNormBackward<NormKind::kRms, NormWeight::kBf16>(
                   p, outputs, stream);
}

}  // namespace millrace
