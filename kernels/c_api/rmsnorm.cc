#include "kernels/c_api/rmsnorm.h"

#include "kernels/c_api/result.h"
#include "kernels/norm/rmsnorm_bf16.h"

extern "C" {

int millrace_rmsnorm_forward_bf16(const millrace_rmsnorm_forward_args* args,
                                  void* stream) {
  return millrace::CResult(millrace::LaunchRmsNormForwardBf16(
      {.y = args->y,
       .rstd = args->rstd,
       .x = args->x,
       .weight = args->weight,
       .num_tokens = args->num_tokens,
       .hidden = args->hidden,
       .epsilon = static_cast<float>(args->epsilon),
       .amax = args->amax},
      static_cast<cudaStream_t>(stream)));
}

int millrace_rmsnorm_residual_forward_bf16(
    const millrace_rmsnorm_residual_forward_args* args, void* stream) {
  return millrace::CResult(millrace::LaunchResidualRmsNormForwardBf16(
      {.residual = args->residual,
       .y = args->y,
       .rstd = args->rstd,
       .x = args->x,
       .delta = args->delta,
       .weight = args->weight,
       .num_tokens = args->num_tokens,
       .hidden = args->hidden,
       .epsilon = static_cast<float>(args->epsilon),
       .amax = args->amax},
      static_cast<cudaStream_t>(stream)));
}

int64_t millrace_rmsnorm_backward_bf16_workspace_bytes(
    const millrace_rmsnorm_backward_args* args) {
  return millrace::RmsNormBackwardBf16WorkspaceBytes(args->num_tokens,
                                                     args->hidden);
}

int millrace_rmsnorm_backward_bf16(const millrace_rmsnorm_backward_args* args,
                                   void* stream) {
  return millrace::CResult(
      millrace::LaunchRmsNormBackwardBf16({.d_x = args->d_x,
                                           .d_weight = args->d_weight,
                                           .d_y = args->d_y,
                                           .x = args->x,
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
