/* GEMM of fp8 tensors; kernels/gemm/gemm_fp8.h says what each field means. A
   plan is made at set-up for one shape and the current device; running it
   allocates nothing. */

#ifndef MILLRACE_KERNELS_C_API_GEMM_FP8_H_
#define MILLRACE_KERNELS_C_API_GEMM_FP8_H_

#include "kernels/c_api/gemm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
  int64_t m, n, k;
  int64_t a_is_e5m2, b_is_e5m2;         /* 0 or 1; not both. */
  int64_t fp32_output;                  /* 0 or 1. */
  int64_t accumulate;                   /* 0 or 1. */
  int64_t fast_accumulation;            /* 0 or 1. */
  int64_t a_stride, b_stride, c_stride; /* 0: dense. */
  int64_t bias;                         /* 0 or 1. */
} millrace_gemm_fp8_shape;

typedef struct {
  void* c;
  const void* a;
  const void* b;
  const float* a_scale; /* On the device. */
  const float* b_scale;
  void* workspace;
  float scale;
  const void* bias; /* [n] bf16, or null without one. */
} millrace_gemm_fp8_args;

typedef struct millrace_gemm_fp8_plan millrace_gemm_fp8_plan;

MILLRACE_API int millrace_gemm_fp8_plan_create(
    const millrace_gemm_fp8_shape* shape, const millrace_gemm_options* options,
    millrace_gemm_fp8_plan** plan);
/* Null is allowed. */
MILLRACE_API void millrace_gemm_fp8_plan_destroy(millrace_gemm_fp8_plan* plan);
MILLRACE_API int64_t
millrace_gemm_fp8_plan_workspace_bytes(const millrace_gemm_fp8_plan* plan);
MILLRACE_API int millrace_gemm_fp8_run(const millrace_gemm_fp8_plan* plan,
                                       const millrace_gemm_fp8_args* args,
                                       void* stream);

/* Scales for blocks of 128; kernels/gemm/gemm_fp8_block.h says what each field
   means. Needs no plan. */
typedef struct {
  void* c;
  const void* a;
  const void* b;
  const float* a_scale;
  const float* b_scale;
  int64_t m, n, k;
  int64_t a_stride, b_stride, c_stride;
  int64_t a_scale_stride, b_scale_stride;
  int64_t fp32_output; /* 0 or 1. */
  int64_t accumulate;  /* 0 or 1. */
  int64_t scales_of_b; /* 0 to 2: squares, turned squares, rows. */
} millrace_gemm_fp8_block_args;

MILLRACE_API int millrace_gemm_fp8_block(
    const millrace_gemm_fp8_block_args* args, void* stream);

#ifdef __cplusplus
}
#endif

#endif /* MILLRACE_KERNELS_C_API_GEMM_FP8_H_ */
