#include "kernels/c_api/elementwise.h"

#include "kernels/c_api/result.h"
#include "kernels/pointwise/elementwise_bf16.h"

extern "C" {

int millrace_add_bf16(const millrace_add_args* args, void* stream) {
  return millrace::CResult(
      millrace::LaunchAddBf16({.out = args->out,
                               .a = args->a,
                               .b = args->b,
                               .num_elements = args->num_elements},
                              static_cast<cudaStream_t>(stream)));
}

}  // extern "C"
