/* Token embedding of bf16 rows; kernels/vocabulary/embedding_bf16.h says what
   each field means. */

#ifndef MILLRACE_KERNELS_C_API_EMBEDDING_H_
#define MILLRACE_KERNELS_C_API_EMBEDDING_H_

#include "kernels/c_api/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
  void* x;
  const int32_t* tokens;
  const void* weight;
  int64_t num_tokens;
  int64_t hidden;
  int64_t vocab_begin;
  int64_t vocab_rows;
} millrace_embedding_forward_args;

typedef struct {
  float* d_weight;
  const int32_t* tokens;
  const void* d_x;
  int64_t num_tokens;
  int64_t hidden;
  int64_t vocab_begin;
  int64_t vocab_rows;
  int64_t accumulate;    /* 0 or 1. */
  int64_t deterministic; /* 0 or 1. */
  void* workspace;       /* Where deterministic. */
} millrace_embedding_backward_args;

MILLRACE_API int millrace_embedding_forward_bf16(
    const millrace_embedding_forward_args* args, void* stream);
/* Depends on num_tokens and hidden alone. */
MILLRACE_API int64_t millrace_embedding_backward_bf16_workspace_bytes(
    const millrace_embedding_backward_args* args);
MILLRACE_API int millrace_embedding_backward_bf16(
    const millrace_embedding_backward_args* args, void* stream);

#ifdef __cplusplus
}
#endif

#endif /* MILLRACE_KERNELS_C_API_EMBEDDING_H_ */
