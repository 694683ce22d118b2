#include "kernels/c_api/layernorm.h"

#include "kernels/c_api/result.h"
#include "kernels/norm/layernorm_bf16.h"

extern "C" {

int millrace_layernorm_forward_bf16(const millrace_layernorm_forward_args* args,
                                    void* stream) {
  return millrace::CResult(millrace::LaunchLayerNormForwardBf16(
      {.y = args->y,
       .mean = args->mean,
       .rstd = args->rstd,
       .x = args->x,
       .weight = args->weight,
       .bias = args->bias,
       .num_tokens = args->num_tokens,
       .hidden = args->hidden,
       .epsilon = static_cast<float>(args->epsilon),
       .amax = args->amax},
      static_cast<cudaStream_t>(stream)));
}

int millrace_layernorm_residual_forward_bf16(
    const millrace_layernorm_residual_forward_args* args, void* stream) {
  return millrace::CResult(millrace::LaunchResidualLayerNormForwardBf16(
      {.residual = args->residual,
       .y = args->y,
       .mean = args->mean,
       .rstd = args->rstd,
       .x = args->x,
       .delta = args->delta,
       .weight = args->weight,
       .bias = args->bias,
       .num_tokens = args->num_tokens,
       .hidden = args->hidden,
       .epsilon = static_cast<float>(args->epsilon),
       .amax = args->amax},
      static_cast<cudaStream_t>(stream)));
}

int64_t millrace_layernorm_backward_bf16_workspace_bytes(
    const millrace_layernorm_backward_args* args) {
  return millrace::LayerNormBackwardBf16WorkspaceBytes(args->num_tokens,
                                                       args->hidden);
}

int millrace_layernorm_backward_bf16(
    const millrace_layernorm_backward_args* args, void* stream) {
  return millrace::CResult(millrace::LaunchLayerNormBackwardBf16(
      {.d_x = args->d_x,
       .d_weight = args->d_weight,
       .d_bias = args->d_bias,
       .d_y = args->d_y,
       .x = args->x,
       .mean = args->mean,
       .rstd = args->rstd,
       .weight = args->weight,
       .d_residual = args->d_residual,
       .workspace = args->workspace,
       .num_tokens = args->num_tokens,
       .hidden = args->hidden,
       .accumulate = args->accumulate != 0,
       .amax = args->amax},
      static_cast<cudaStream_t>(stream)));
}

}  // extern "C"
