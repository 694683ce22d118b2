/* Attention of e4m3 tensors; kernels/attention/attention_fp8.h says what each
   field means, kernels/attention/attention_fp8_quantize.h where the tensors
   come from. */

#ifndef MILLRACE_KERNELS_C_API_ATTENTION_FP8_H_
#define MILLRACE_KERNELS_C_API_ATTENTION_FP8_H_

#include "kernels/c_api/attention.h"
#include "kernels/c_api/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
  int64_t num_sequences;
  int64_t sequence_length;
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_dim;
  int64_t causal; /* 0 or 1. */
} millrace_attention_fp8_shape;

/* How many elements the caller allocates. */
MILLRACE_API int64_t
millrace_fp8_value_bytes(const millrace_attention_fp8_shape* shape);
MILLRACE_API int64_t
millrace_fp8_num_query_scales(const millrace_attention_fp8_shape* shape);
MILLRACE_API int64_t
millrace_fp8_num_key_scales(const millrace_attention_fp8_shape* shape);

typedef struct {
  millrace_heads o; /* bf16. */
  float* lse;
  millrace_heads q, k; /* e4m3. */
  const void* v;
  const float* q_scale;
  const float* k_scale;
  const float* v_scale;
  int32_t* tile_counter; /* Two integers, zero before the first call. */
  millrace_attention_fp8_shape shape;
} millrace_attention_forward_fp8_args;

MILLRACE_API int millrace_attention_forward_fp8(
    const millrace_attention_forward_fp8_args* args, void* stream);

typedef struct {
  millrace_heads q, k; /* e4m3. */
  void* v;
  float* q_scale;
  float* k_scale;
  float* v_scale;
  millrace_heads q_in, k_in, v_in; /* bf16. */
  const float* rope_table;         /* Null: no rotation. */
  int64_t hadamard;                /* 0 or 1. */
  uint64_t signs[2];
  millrace_attention_fp8_shape shape;
} millrace_quantize_qkv_fp8_args;

MILLRACE_API int millrace_quantize_qkv_fp8(
    const millrace_quantize_qkv_fp8_args* args, void* stream);

#ifdef __cplusplus
}
#endif

#endif /* MILLRACE_KERNELS_C_API_ATTENTION_FP8_H_ */
