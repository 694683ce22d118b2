// RMSNorm: y[t, h] = x[t, h] * rstd[t] * weight[h],
//          rstd[t] = 1 / sqrt(mean over h of x[t, h]^2 + epsilon).
// Where `adds_one` says so, 1 + weight[h] stands for weight[h] (Gemma).
//
// Every function returns InvalidArgument naming the shape if num_tokens is
// negative, hidden below one or num_threads below one. Results do not depend on
// num_threads.

#ifndef MILLRACE_KERNELS_NORM_RMSNORM_H_
#define MILLRACE_KERNELS_NORM_RMSNORM_H_

#include <cstdint>

#include "absl/status/status.h"

namespace millrace {

// Row-major fp32. The caller owns every pointer.
struct RmsNormForwardArgs {
  float* y;             // [num_tokens, hidden]; may alias x.
  float* rstd;          // [num_tokens]; kept for the backward pass.
  const float* x;       // [num_tokens, hidden]
  const float* weight;  // [hidden]
  int64_t num_tokens;   // Zero is allowed and does nothing.
  int64_t hidden;       // At least one.
  float epsilon;
  bool adds_one = false;
};

// The same of residual = x + delta.
struct ResidualRmsNormForwardArgs {
  float* residual;      // [num_tokens, hidden]; may alias x or delta.
  float* y;             // [num_tokens, hidden]; may alias x or delta, if
                        // residual does not alias the same.
  float* rstd;          // [num_tokens]
  const float* x;       // [num_tokens, hidden]
  const float* delta;   // [num_tokens, hidden]
  const float* weight;  // [hidden]
  int64_t num_tokens;
  int64_t hidden;
  float epsilon;
  bool adds_one = false;
};

// With g[h] = d_y[t, h] weight[h] and n[h] = x[t, h] rstd[t]:
//   d_x[t, h] = rstd[t] (g[h] - n[h] mean over h of g n) + d_residual[t, h],
//   d_weight[h] (+)= sum over t of d_y[t, h] n[h].
struct RmsNormBackwardArgs {
  float* d_x;       // [num_tokens, hidden]; may alias d_residual only.
  float* d_weight;  // [hidden]
  const float* d_y;
  const float* x;           // The forward pass's input.
  const float* rstd;        // [num_tokens]
  const float* weight;      // [hidden]
  const float* d_residual;  // [num_tokens, hidden], or null for none.
  int64_t num_tokens;
  int64_t hidden;
  bool accumulate;  // d_weight is added to, not overwritten.
  bool adds_one = false;
};

absl::Status RmsNormForward(const RmsNormForwardArgs& args, int num_threads);
absl::Status ResidualRmsNormForward(const ResidualRmsNormForwardArgs& args,
                                    int num_threads);
absl::Status RmsNormBackward(const RmsNormBackwardArgs& args, int num_threads);

// The meaning of the kernels in plain loops.
void RmsNormForwardReference(const RmsNormForwardArgs& args);
void ResidualRmsNormForwardReference(const ResidualRmsNormForwardArgs& args);
void RmsNormBackwardReference(const RmsNormBackwardArgs& args);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_NORM_RMSNORM_H_
