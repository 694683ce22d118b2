/* Output projection and cross entropy loss of bf16 tensors, forward and
   backward in one; kernels/vocabulary/cross_entropy_bf16.h says what each field
   means. A plan is made at set-up for one shape and the current device; running
   it allocates nothing. */

#ifndef MILLRACE_KERNELS_C_API_CROSS_ENTROPY_H_
#define MILLRACE_KERNELS_C_API_CROSS_ENTROPY_H_

#include "kernels/c_api/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Floats of a token's stats: maximum, sum of exponentials, target logit. */
#define MILLRACE_CROSS_ENTROPY_STATS 3

/* For the three matrix products, as text; an empty one is the heuristic's. */
typedef struct {
  char logits[256];
  char d_hidden[256];
  char d_weight[256];
} millrace_cross_entropy_algorithms;

typedef struct {
  int64_t num_tokens;
  int64_t hidden; /* A multiple of 8. */
  int64_t vocab_rows;
  int64_t vocab_begin;
  int64_t chunk_tokens; /* 0: as many as max_logits_bytes allows. */
  int64_t accumulate;   /* 0 or 1. */
  double token_scale;
  double loss_share;
  double z_loss;
  int64_t max_logits_bytes;
  int64_t max_gemm_workspace_bytes;
  const millrace_cross_entropy_algorithms* algorithms; /* May be null. */
} millrace_cross_entropy_options;

typedef struct {
  void* d_hidden;
  float* d_weight;
  double* loss;
  const void* hidden;
  const void* weight;
  const int32_t* targets;
  const float* device_token_scale; /* May be null. */
  void* workspace;
} millrace_linear_cross_entropy_args;

typedef struct {
  float* stats;
  const void* hidden;
  const void* weight;
  const int32_t* targets;
  void* workspace;
} millrace_cross_entropy_stats_args;

typedef struct {
  void* d_hidden;
  float* d_weight;
  double* loss;
  const void* hidden;
  const void* weight;
  const int32_t* targets;
  const float* all_stats;
  int64_t num_shards;
  const float* device_token_scale; /* May be null. */
  int64_t has_logits;              /* 0 or 1. */
  void* workspace;
} millrace_cross_entropy_gradient_args;

typedef struct {
  double* loss;
  const int32_t* targets;
  const float* all_stats;
  int64_t num_shards;
  int64_t num_tokens;
  double token_scale;
  double loss_share;
  double z_loss;
} millrace_cross_entropy_loss_args;

typedef struct {
  int64_t* count;
  float* reciprocal; /* May be null. */
  const int32_t* targets;
  int64_t num_tokens;
} millrace_count_targets_args;

typedef struct millrace_cross_entropy_plan millrace_cross_entropy_plan;

MILLRACE_API int millrace_cross_entropy_bf16_plan_create(
    const millrace_cross_entropy_options* options,
    millrace_cross_entropy_plan** plan);
/* Null is allowed. */
MILLRACE_API void millrace_cross_entropy_bf16_plan_destroy(
    millrace_cross_entropy_plan* plan);
MILLRACE_API int64_t millrace_cross_entropy_bf16_plan_chunk_tokens(
    const millrace_cross_entropy_plan* plan);
MILLRACE_API int64_t millrace_cross_entropy_bf16_plan_num_chunks(
    const millrace_cross_entropy_plan* plan);
MILLRACE_API int64_t millrace_cross_entropy_bf16_plan_workspace_bytes(
    const millrace_cross_entropy_plan* plan);

MILLRACE_API int millrace_linear_cross_entropy_bf16(
    const millrace_cross_entropy_plan* plan,
    const millrace_linear_cross_entropy_args* args, void* stream);
MILLRACE_API int millrace_cross_entropy_stats_bf16(
    const millrace_cross_entropy_plan* plan,
    const millrace_cross_entropy_stats_args* args, void* stream);
MILLRACE_API int millrace_cross_entropy_gradient_bf16(
    const millrace_cross_entropy_plan* plan,
    const millrace_cross_entropy_gradient_args* args, void* stream);

/* Finds the fastest algorithms by running candidates on the given buffers;
   waits for the device. The workspace is of *workspace_bytes, which the second
   function says. */
MILLRACE_API int millrace_cross_entropy_bf16_measure(
    const millrace_cross_entropy_options* options,
    const millrace_linear_cross_entropy_args* args, int64_t max_candidates,
    millrace_cross_entropy_algorithms* algorithms, void* stream);
MILLRACE_API int millrace_cross_entropy_bf16_measure_workspace_bytes(
    const millrace_cross_entropy_options* options, int64_t* workspace_bytes);

MILLRACE_API int millrace_cross_entropy_loss(
    const millrace_cross_entropy_loss_args* args, void* stream);
MILLRACE_API int millrace_count_targets(const millrace_count_targets_args* args,
                                        void* stream);

#ifdef __cplusplus
}
#endif

#endif /* MILLRACE_KERNELS_C_API_CROSS_ENTROPY_H_ */
