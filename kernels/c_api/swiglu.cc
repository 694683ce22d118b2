#include "kernels/c_api/swiglu.h"

#include "kernels/c_api/result.h"
#include "kernels/pointwise/swiglu_bf16.h"

namespace millrace {
namespace {

Bf16Rows Rows(const millrace_swiglu_rows& rows) {
  return {.data = rows.data, .row_stride = rows.row_stride};
}

}  // namespace
}  // namespace millrace

extern "C" {

int millrace_swiglu_forward_bf16(const millrace_swiglu_forward_args* args,
                                 void* stream) {
  return millrace::CResult(millrace::LaunchSwigluForwardBf16(
      {.activation = millrace::Rows(args->activation),
       .gate = millrace::Rows(args->gate),
       .up = millrace::Rows(args->up),
       .num_tokens = args->num_tokens,
       .ffn_hidden = args->ffn_hidden,
       .amax = args->amax},
      static_cast<cudaStream_t>(stream)));
}

int millrace_swiglu_backward_bf16(const millrace_swiglu_backward_args* args,
                                  void* stream) {
  return millrace::CResult(millrace::LaunchSwigluBackwardBf16(
      {.d_gate = millrace::Rows(args->d_gate),
       .d_up = millrace::Rows(args->d_up),
       .activation = millrace::Rows(args->activation),
       .gate = millrace::Rows(args->gate),
       .up = millrace::Rows(args->up),
       .d_activation = millrace::Rows(args->d_activation),
       .num_tokens = args->num_tokens,
       .ffn_hidden = args->ffn_hidden,
       .amax = args->amax},
      static_cast<cudaStream_t>(stream)));
}

}  // extern "C"
