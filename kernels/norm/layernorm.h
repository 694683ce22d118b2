// LayerNorm (Ba et al., "Layer Normalization", 2016):
//   y[t, h] = n[t, h] weight[h] + bias[h], n[t, h] = (x[t, h] - mean[t])
//   rstd[t], rstd[t] = 1 / sqrt(mean over h of (x[t, h] - mean[t])^2 +
//   epsilon).

#ifndef MILLRACE_KERNELS_NORM_LAYERNORM_H_
#define MILLRACE_KERNELS_NORM_LAYERNORM_H_

#include <cstdint>

#include "absl/status/status.h"

namespace millrace {

// Row-major fp32. The caller owns every pointer.
struct LayerNormForwardArgs {
  float* y;             // [num_tokens, hidden]; may alias x.
  float* mean;          // [num_tokens]; kept for the backward pass, as is rstd.
  float* rstd;          // [num_tokens]
  const float* x;       // [num_tokens, hidden]
  const float* weight;  // [hidden]
  const float* bias;    // [hidden]
  int64_t num_tokens;
  int64_t hidden;  // At least one.
  float epsilon;
};

// The same of residual = x + delta.
struct ResidualLayerNormForwardArgs {
  float* residual;      // [num_tokens, hidden]; may alias x or delta.
  float* y;             // [num_tokens, hidden]; may alias x or delta, if
                        // residual does not alias the same.
  float* mean;          // [num_tokens]
  float* rstd;          // [num_tokens]
  const float* x;       // [num_tokens, hidden]
  const float* delta;   // [num_tokens, hidden]
  const float* weight;  // [hidden]
  const float* bias;    // [hidden]
  int64_t num_tokens;
  int64_t hidden;
  float epsilon;
};

// With g[h] = d_y[t, h] weight[h]:
//   d_x[t, h] = rstd[t] (g[h] - mean over h of g - n[h] mean over h of g n)
//               + d_residual[t, h],
//   d_weight[h] (+)= sum over t of d_y[t, h] n[t, h],
//   d_bias[h] (+)= sum over t of d_y[t, h].
struct LayerNormBackwardArgs {
  float* d_x;       // [num_tokens, hidden]; may alias d_residual only.
  float* d_weight;  // [hidden]
  float* d_bias;    // [hidden]
  const float* d_y;
  const float* x;           // The forward pass's input.
  const float* mean;        // [num_tokens]
  const float* rstd;        // [num_tokens]
  const float* weight;      // [hidden]
  const float* d_residual;  // [num_tokens, hidden], or null for none.
  int64_t num_tokens;
  int64_t hidden;
  bool accumulate;  // d_weight and d_bias are added to, not overwritten.
};

// InvalidArgument names a bad shape. A gradient of weight or bias is summed in
// token order, so results do not depend on num_threads.
absl::Status LayerNormForward(const LayerNormForwardArgs& args,
                              int num_threads);
absl::Status ResidualLayerNormForward(const ResidualLayerNormForwardArgs& args,
                                      int num_threads);
absl::Status LayerNormBackward(const LayerNormBackwardArgs& args,
                               int num_threads);

// The meaning of the kernels in plain loops.
void LayerNormForwardReference(const LayerNormForwardArgs& args);
void ResidualLayerNormForwardReference(
    const ResidualLayerNormForwardArgs& args);
void LayerNormBackwardReference(const LayerNormBackwardArgs& args);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_NORM_LAYERNORM_H_
