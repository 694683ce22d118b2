#include "kernels/c_api/adamw.h"

#include "kernels/c_api/result.h"
#include "kernels/optimizer/adamw_bf16.h"
#include "kernels/optimizer/gradient_norm_bf16.h"

extern "C" {

int millrace_adamw_bf16(const millrace_adamw_args* args, void* stream) {
  return millrace::CResult(
      millrace::LaunchAdamWBf16({.master = args->master,
                                 .weights = args->weights,
                                 .exp_avg = args->exp_avg,
                                 .exp_avg_sq = args->exp_avg_sq,
                                 .gradients = args->gradients,
                                 .bf16_moments = args->bf16_moments != 0,
                                 .bf16_gradients = args->bf16_gradients != 0,
                                 .begin = args->begin,
                                 .end = args->end,
                                 .learning_rate = args->learning_rate,
                                 .beta1 = args->beta1,
                                 .beta2 = args->beta2,
                                 .epsilon = args->epsilon,
                                 .weight_decay = args->weight_decay,
                                 .step = args->step,
                                 .seed = args->seed,
                                 .clip_factor = args->clip_factor,
                                 .skip = args->skip},
                                static_cast<cudaStream_t>(stream)));
}

int64_t millrace_squared_norm_bf16_workspace_bytes(void) {
  return millrace::SquaredNormBf16WorkspaceBytes();
}

int millrace_squared_norm_bf16(const millrace_squared_norm_args* args,
                               void* stream) {
  return millrace::CResult(
      millrace::LaunchSquaredNormBf16({.sum = args->sum,
                                       .x = args->x,
                                       .num_elements = args->num_elements,
                                       .is_bf16 = args->is_bf16 != 0,
                                       .overwrite = args->overwrite != 0,
                                       .share = args->share,
                                       .workspace = args->workspace},
                                      static_cast<cudaStream_t>(stream)));
}

int millrace_gradient_norm_bf16(const millrace_gradient_norm_args* args,
                                void* stream) {
  return millrace::CResult(
      millrace::LaunchGradientNormBf16({.norm = args->norm,
                                        .clip_factor = args->clip_factor,
                                        .skip = args->skip,
                                        .sum = args->sum,
                                        .max_norm = args->max_norm},
                                       static_cast<cudaStream_t>(stream)));
}

}  // extern "C"
