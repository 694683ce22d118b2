#include "kernels/c_api/gelu.h"

#include "kernels/c_api/result.h"
#include "kernels/pointwise/gelu_bf16.h"

namespace millrace {
namespace {

GeluForm Form(int64_t exact) {
  return exact != 0 ? GeluForm::kErf : GeluForm::kTanh;
}

}  // namespace
}  // namespace millrace

extern "C" {

int millrace_gelu_forward_bf16(const millrace_gelu_forward_args* args,
                               void* stream) {
  return millrace::CResult(
      millrace::LaunchGeluForwardBf16({.y = args->y,
                                       .x = args->x,
                                       .num_elements = args->num_elements,
                                       .form = millrace::Form(args->exact)},
                                      static_cast<cudaStream_t>(stream)));
}

int millrace_gelu_backward_bf16(const millrace_gelu_backward_args* args,
                                void* stream) {
  return millrace::CResult(
      millrace::LaunchGeluBackwardBf16({.d_x = args->d_x,
                                        .y = args->y,
                                        .x = args->x,
                                        .d_y = args->d_y,
                                        .num_elements = args->num_elements,
                                        .form = millrace::Form(args->exact)},
                                       static_cast<cudaStream_t>(stream)));
}

}  // extern "C"
