/* Sums of bf16 tensors; kernels/pointwise/elementwise_bf16.h says what each
 * field means.
 */

#ifndef MILLRACE_KERNELS_C_API_ELEMENTWISE_H_
#define MILLRACE_KERNELS_C_API_ELEMENTWISE_H_

#include "kernels/c_api/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
  void* out;
  const void* a;
  const void* b;
  int64_t num_elements;
} millrace_add_args;

MILLRACE_API int millrace_add_bf16(const millrace_add_args* args, void* stream);

#ifdef __cplusplus
}
#endif

#endif /* MILLRACE_KERNELS_C_API_ELEMENTWISE_H_ */
