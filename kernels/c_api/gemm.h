/* GEMM of bf16 tensors; kernels/gemm/gemm_bf16.h says what each field means. A
   plan is made at set-up for one shape and the current device; running it
   allocates nothing. */

#ifndef MILLRACE_KERNELS_C_API_GEMM_H_
#define MILLRACE_KERNELS_C_API_GEMM_H_

#include "kernels/c_api/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* GemmEpilogue. */
enum {
  MILLRACE_GEMM_NONE = 0,
  MILLRACE_GEMM_BIAS = 1,
  MILLRACE_GEMM_GELU = 2,
  MILLRACE_GEMM_GELU_BIAS = 3,
  MILLRACE_GEMM_GELU_SAVE = 4,
  MILLRACE_GEMM_GELU_BIAS_SAVE = 5,
  MILLRACE_GEMM_GELU_GRADIENT = 6,
  MILLRACE_GEMM_GELU_BIAS_GRADIENT = 7,
  MILLRACE_GEMM_SUM_A = 8,
  MILLRACE_GEMM_SUM_B = 9
};

typedef struct {
  int64_t m, n, k;
  int64_t trans_a, trans_b; /* 0 or 1. */
  int64_t fp32_output;      /* 0 or 1. */
  int64_t accumulate;       /* 0 or 1. */
  int64_t epilogue;
  int64_t a_stride, b_stride, c_stride, aux_stride; /* 0: dense. */
} millrace_gemm_shape;

typedef struct {
  int64_t max_workspace_bytes;
  int64_t num_multiprocessors; /* 0: all. */
  const char* algorithm;       /* Null: the heuristic's. */
} millrace_gemm_options;

typedef struct {
  void* c;
  const void* a;
  const void* b;
  void* bias;
  void* aux;
  void* workspace;
  float scale;
} millrace_gemm_args;

typedef struct {
  char algorithm[256];
  double milliseconds;
  int64_t workspace_bytes;
} millrace_gemm_measurement;

typedef struct millrace_gemm_plan millrace_gemm_plan;

MILLRACE_API int millrace_gemm_bf16_plan_create(
    const millrace_gemm_shape* shape, const millrace_gemm_options* options,
    millrace_gemm_plan** plan);
/* Null is allowed. */
MILLRACE_API void millrace_gemm_bf16_plan_destroy(millrace_gemm_plan* plan);
MILLRACE_API int64_t
millrace_gemm_bf16_plan_workspace_bytes(const millrace_gemm_plan* plan);
/* Valid as long as the plan. */
MILLRACE_API const char* millrace_gemm_bf16_plan_algorithm(
    const millrace_gemm_plan* plan);
MILLRACE_API int millrace_gemm_bf16_run(const millrace_gemm_plan* plan,
                                        const millrace_gemm_args* args,
                                        void* stream);

/* Measures candidates on `num_sets` sets of buffers in turn; waits for the
   device. Writes the fastest `capacity` ones, fastest first, and their number.
 */
MILLRACE_API int millrace_gemm_bf16_measure(
    const millrace_gemm_shape* shape, const millrace_gemm_options* options,
    const millrace_gemm_args* sets, int64_t num_sets, int64_t max_candidates,
    millrace_gemm_measurement* measurements, int64_t capacity,
    int64_t* num_measurements, void* stream);

/* Products of a mixture of experts; kernels/gemm/gemm_grouped_bf16.h. */
typedef struct {
  void* c;
  const void* a;
  const void* b;
  const int32_t* group_offsets; /* [num_groups + 1], on the device. */
  int64_t num_rows, n, k, num_groups;
  int64_t trans_b; /* 0 or 1. */
  float scale;
} millrace_gemm_grouped_args;

MILLRACE_API int millrace_gemm_grouped_bf16(
    const millrace_gemm_grouped_args* args, void* stream);

#ifdef __cplusplus
}
#endif

#endif /* MILLRACE_KERNELS_C_API_GEMM_H_ */
