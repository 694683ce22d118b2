/* SwiGLU of bf16 tensors; kernels/pointwise/swiglu_bf16.h says what each field
 * means. */

#ifndef MILLRACE_KERNELS_C_API_SWIGLU_H_
#define MILLRACE_KERNELS_C_API_SWIGLU_H_

#include "kernels/c_api/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* [tokens, columns] bf16; the stride in elements. */
typedef struct {
  void* data;
  int64_t row_stride;
} millrace_swiglu_rows;

typedef struct {
  millrace_swiglu_rows activation, gate, up;
  int64_t num_tokens;
  int64_t ffn_hidden;
  float* amax; /* May be null. */
} millrace_swiglu_forward_args;

typedef struct {
  millrace_swiglu_rows d_gate, d_up;
  millrace_swiglu_rows activation; /* Null data: not wanted. */
  millrace_swiglu_rows gate, up, d_activation;
  int64_t num_tokens;
  int64_t ffn_hidden;
  float* amax; /* May be null. */
} millrace_swiglu_backward_args;

MILLRACE_API int millrace_swiglu_forward_bf16(
    const millrace_swiglu_forward_args* args, void* stream);
MILLRACE_API int millrace_swiglu_backward_bf16(
    const millrace_swiglu_backward_args* args, void* stream);

#ifdef __cplusplus
}
#endif

#endif /* MILLRACE_KERNELS_C_API_SWIGLU_H_ */
