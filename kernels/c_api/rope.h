/* RoPE of bf16 queries and keys, with QK-norm if wanted;
   kernels/pointwise/rope_bf16.h says what each field means. */

#ifndef MILLRACE_KERNELS_C_API_ROPE_H_
#define MILLRACE_KERNELS_C_API_ROPE_H_

#include "kernels/c_api/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
  int64_t num_tokens;
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_dim;
  int64_t sequence_length;
  int64_t table_length;
} millrace_rope_shape;

typedef struct {
  void* out;
  int64_t out_token_stride; /* Elements, as all strides. */
  const void* qkv;
  int64_t qkv_token_stride;
  const float* table; /* [2, table_length, head_dim / 2]: cosines, sines. */
  const int32_t* position_ids; /* Null: token modulo sequence_length. */
  const void* q_weight;        /* Null, as is k_weight: no QK-norm. */
  const void* k_weight;
  float* rstd;
  double epsilon;
  millrace_rope_shape shape;
} millrace_rope_forward_args;

typedef struct {
  void* d_qkv;
  int64_t d_qkv_token_stride;
  const float* table;
  const int32_t* position_ids;
  const void* q_weight; /* From here on with QK-norm only. */
  const void* k_weight;
  const void* qkv;
  int64_t qkv_token_stride;
  const float* rstd;
  float* d_q_weight;
  float* d_k_weight;
  int64_t accumulate; /* 0 or 1. */
  void* workspace;
  millrace_rope_shape shape;
  float* amax; /* May be null. */
} millrace_rope_backward_args;

MILLRACE_API int millrace_rope_forward_bf16(
    const millrace_rope_forward_args* args, void* stream);
MILLRACE_API int64_t
millrace_rope_backward_bf16_workspace_bytes(const millrace_rope_shape* shape);
MILLRACE_API int millrace_rope_backward_bf16(
    const millrace_rope_backward_args* args, void* stream);

#ifdef __cplusplus
}
#endif

#endif /* MILLRACE_KERNELS_C_API_ROPE_H_ */
