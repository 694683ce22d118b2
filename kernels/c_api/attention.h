/* Attention of bf16 tensors; kernels/attention/attention_bf16.h says what each
   field means. */

#ifndef MILLRACE_KERNELS_C_API_ATTENTION_H_
#define MILLRACE_KERNELS_C_API_ATTENTION_H_

#include "kernels/c_api/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* [sequences, tokens, heads, head_dim] bf16; strides in elements. */
typedef struct {
  void* data;
  int64_t token_stride;
  int64_t head_stride;
  int64_t sequence_stride;
} millrace_heads;

typedef struct {
  int64_t num_sequences;
  int64_t sequence_length;
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_dim;
  int64_t causal;                  /* 0 or 1. */
  int64_t window;                  /* 0: none. */
  const int32_t* document_offsets; /* Null: sequences of equal length. */
  int64_t total_tokens;            /* With document_offsets. */
} millrace_attention_shape;

typedef struct {
  millrace_heads o;
  float* lse;
  millrace_heads q, k, v;
  int32_t* tile_counter; /* Two integers, zero before the first call. */
  millrace_attention_shape shape;
  float* amax; /* May be null. */
} millrace_attention_forward_args;

typedef struct {
  millrace_heads d_q, d_k, d_v;
  millrace_heads q, k, v, o, d_o;
  const float* lse;
  void* workspace;
  millrace_attention_shape shape;
  int64_t deterministic; /* 0 or 1. */
} millrace_attention_backward_args;

MILLRACE_API int millrace_attention_forward_bf16(
    const millrace_attention_forward_args* args, void* stream);
MILLRACE_API int64_t millrace_attention_backward_bf16_workspace_bytes(
    const millrace_attention_shape* shape);
MILLRACE_API int millrace_attention_backward_bf16(
    const millrace_attention_backward_args* args, void* stream);

#ifdef __cplusplus
}
#endif

#endif /* MILLRACE_KERNELS_C_API_ATTENTION_H_ */
