/* AdamW and the norm of the gradients; kernels/optimizer/adamw_bf16.h and
   kernels/optimizer/gradient_norm_bf16.h say what each field means. */

#ifndef MILLRACE_KERNELS_C_API_ADAMW_H_
#define MILLRACE_KERNELS_C_API_ADAMW_H_

#include "kernels/c_api/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
  float* master; /* Null: the bf16 weights are all there is. */
  void* weights; /* bf16; may be null where there is a master. */
  void* exp_avg;
  void* exp_avg_sq;
  const void* gradients;
  int64_t bf16_moments;   /* 0 or 1. */
  int64_t bf16_gradients; /* 0 or 1. */
  int64_t begin;
  int64_t end;
  double learning_rate;
  double beta1;
  double beta2;
  double epsilon;
  double weight_decay;
  int64_t step;
  uint64_t seed;
  const float* clip_factor; /* May be null. */
  const int32_t* skip;      /* May be null. */
} millrace_adamw_args;

typedef struct {
  double* sum;
  const void* x;
  int64_t num_elements;
  int64_t is_bf16;   /* 0 or 1. */
  int64_t overwrite; /* 0 or 1. */
  double share;
  void* workspace; /* Zero before the first call. */
} millrace_squared_norm_args;

typedef struct {
  float* norm;        /* May be null. */
  float* clip_factor; /* May be null. */
  int32_t* skip;      /* May be null. */
  const double* sum;
  double max_norm;
} millrace_gradient_norm_args;

MILLRACE_API int millrace_adamw_bf16(const millrace_adamw_args* args,
                                     void* stream);
MILLRACE_API int64_t millrace_squared_norm_bf16_workspace_bytes(void);
MILLRACE_API int millrace_squared_norm_bf16(
    const millrace_squared_norm_args* args, void* stream);
MILLRACE_API int millrace_gradient_norm_bf16(
    const millrace_gradient_norm_args* args, void* stream);

#ifdef __cplusplus
}
#endif

#endif /* MILLRACE_KERNELS_C_API_ADAMW_H_ */
