/* GELU of bf16 tensors; kernels/pointwise/gelu_bf16.h says what each field
 * means. */

#ifndef MILLRACE_KERNELS_C_API_GELU_H_
#define MILLRACE_KERNELS_C_API_GELU_H_

#include "kernels/c_api/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
  void* y;
  const void* x;
  int64_t num_elements;
  int64_t exact; /* 0: the tanh form. 1: erf. */
} millrace_gelu_forward_args;

typedef struct {
  void* d_x;
  void* y; /* Null: not wanted. */
  const void* x;
  const void* d_y;
  int64_t num_elements;
  int64_t exact;
} millrace_gelu_backward_args;

MILLRACE_API int millrace_gelu_forward_bf16(
    const millrace_gelu_forward_args* args, void* stream);
MILLRACE_API int millrace_gelu_backward_bf16(
    const millrace_gelu_backward_args* args, void* stream);

#ifdef __cplusplus
}
#endif

#endif /* MILLRACE_KERNELS_C_API_GELU_H_ */
