/* Casts between fp32, bf16 and 8-bit floats; kernels/pointwise/cast_bf16.h says
   what each field means. */

#ifndef MILLRACE_KERNELS_C_API_CAST_H_
#define MILLRACE_KERNELS_C_API_CAST_H_

#include "kernels/c_api/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
  void* y;
  const float* x;
  int64_t num_elements;
  int64_t stochastic; /* 0 or 1. */
  uint64_t seed;
  uint64_t stream;
  int64_t first_index;
} millrace_cast_to_bf16_args;

typedef struct {
  float* y;
  const void* x;
  int64_t num_elements;
} millrace_cast_to_float_args;

typedef struct {
  void* y;            /* May be null. */
  void* y_transposed; /* May be null. */
  float* amax;        /* May be null. */
  const void* x;
  int64_t x_row_stride;
  int64_t rows;
  int64_t columns;
  const float* scale;         /* Null: one. */
  int64_t e5m2;               /* 0: e4m3. 1: e5m2. */
  const float* scale_of_amax; /* May be null. */
  float* unit;                /* May be null. */
} millrace_quantize_fp8_args;

typedef struct {
  float* amax;
  const void* x;
  int64_t x_row_stride;
  int64_t rows;
  int64_t columns;
} millrace_amax_args;

typedef struct {
  void* y;
  const void* x;
  int64_t x_row_stride;
  int64_t rows;
  int64_t columns;
} millrace_transpose_fp8_args;

MILLRACE_API int millrace_cast_to_bf16(const millrace_cast_to_bf16_args* args,
                                       void* stream);
MILLRACE_API int millrace_cast_to_float(const millrace_cast_to_float_args* args,
                                        void* stream);
MILLRACE_API int millrace_amax_bf16(const millrace_amax_args* args,
                                    void* stream);
MILLRACE_API int millrace_quantize_fp8_bf16(
    const millrace_quantize_fp8_args* args, void* stream);

MILLRACE_API int millrace_transpose_fp8(const millrace_transpose_fp8_args* args,
                                        void* stream);

#ifdef __cplusplus
}
#endif

#endif /* MILLRACE_KERNELS_C_API_CAST_H_ */
