/* LayerNorm of bf16 rows; kernels/norm/layernorm_bf16.h says what each field
   means. */

#ifndef MILLRACE_KERNELS_C_API_LAYERNORM_H_
#define MILLRACE_KERNELS_C_API_LAYERNORM_H_

#include "kernels/c_api/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
  void* y;
  float* mean;
  float* rstd;
  const void* x;
  const void* weight;
  const void* bias;
  int64_t num_tokens;
  int64_t hidden;
  double epsilon;
  float* amax; /* May be null. */
} millrace_layernorm_forward_args;

typedef struct {
  void* residual;
  void* y;
  float* mean;
  float* rstd;
  const void* x;
  const void* delta;
  const void* weight;
  const void* bias;
  int64_t num_tokens;
  int64_t hidden;
  double epsilon;
  float* amax; /* May be null. */
} millrace_layernorm_residual_forward_args;

typedef struct {
  void* d_x;
  float* d_weight;
  float* d_bias;
  const void* d_y;
  const void* x;
  const float* mean;
  const float* rstd;
  const void* weight;
  const void* d_residual; /* Null: none. */
  void* workspace;
  int64_t num_tokens;
  int64_t hidden;
  int64_t accumulate; /* 0 or 1. */
  float* amax;        /* May be null. */
} millrace_layernorm_backward_args;

MILLRACE_API int millrace_layernorm_forward_bf16(
    const millrace_layernorm_forward_args* args, void* stream);
MILLRACE_API int millrace_layernorm_residual_forward_bf16(
    const millrace_layernorm_residual_forward_args* args, void* stream);
/* Reads the two sizes alone; 0 if the shape cannot be. */
MILLRACE_API int64_t millrace_layernorm_backward_bf16_workspace_bytes(
    const millrace_layernorm_backward_args* args);
MILLRACE_API int millrace_layernorm_backward_bf16(
    const millrace_layernorm_backward_args* args, void* stream);

#ifdef __cplusplus
}
#endif

#endif /* MILLRACE_KERNELS_C_API_LAYERNORM_H_ */
