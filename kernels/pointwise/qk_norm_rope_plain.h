// RMSNorm of query and key heads and their rotation on a GPU, in place in the
// packed projection (the math stands in qk_norm_rope.h, what plain means in
// element_type.h).

#ifndef MILLRACE_KERNELS_POINTWISE_QK_NORM_ROPE_PLAIN_H_
#define MILLRACE_KERNELS_POINTWISE_QK_NORM_ROPE_PLAIN_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/element_type.h"
#include "kernels/cuda/fwd.h"
#include "kernels/pointwise/qk_norm_rope.h"

namespace millrace {

// Device pointers; void is of the element type. Tensors and shape are those of
// qk_norm_rope.h; tokens times normed heads are below 2^31.
struct PlainQkNormRopeForwardArgs {
  void* qkv;
  void* raw;
  float* rstd;
  const float* q_weight;
  const float* k_weight;
  const float* table;
  float epsilon;
  QkNormRopeShape shape;
};

struct PlainQkNormRopeBackwardArgs {
  void* d_qkv;
  float* d_q_weight;
  float* d_k_weight;
  const void* raw;
  const float* rstd;
  const float* q_weight;
  const float* k_weight;
  const float* table;
  float* workspace;  // PlainQkNormRopeBackwardWorkspaceBytes().
  QkNormRopeShape shape;
  bool accumulate;
};

int64_t PlainQkNormRopeBackwardWorkspaceBytes(const QkNormRopeShape& shape);

// Enqueue on `stream`, allocate nothing. InvalidArgument names a bad shape. The
// order of additions depends on the sizes alone.
absl::Status LaunchPlainQkNormRopeForward(
    const PlainQkNormRopeForwardArgs& args, ElementType type,
    cudaStream_t stream);
absl::Status LaunchPlainQkNormRopeBackward(
    const PlainQkNormRopeBackwardArgs& args, ElementType type,
    cudaStream_t stream);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_POINTWISE_QK_NORM_ROPE_PLAIN_H_
