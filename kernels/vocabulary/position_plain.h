// Learned positions of a shard of their table on a GPU (the meaning stands in
// position.h, what plain means in element_type.h).

#ifndef MILLRACE_KERNELS_VOCABULARY_POSITION_PLAIN_H_
#define MILLRACE_KERNELS_VOCABULARY_POSITION_PLAIN_H_

#include "absl/status/status.h"
#include "kernels/cuda/element_type.h"
#include "kernels/cuda/fwd.h"
#include "kernels/vocabulary/position.h"

namespace millrace {

// Device pointers; void is of the element type.
struct PlainAddPositionsArgs {
  void* x;             // [num_tokens, hidden]
  const void* weight;  // [num_rows, hidden]
  PositionShape shape;
};

struct PlainPositionGradientArgs {
  float* d_weight;  // [num_rows, hidden]
  const void* d_x;  // [num_tokens, hidden]
  PositionShape shape;
  bool accumulate;  // d_weight is added to, not overwritten.
};

// Enqueue on `stream`, allocate nothing. InvalidArgument names a bad shape. A
// row's gradient is summed in token order.
absl::Status LaunchPlainAddPositions(const PlainAddPositionsArgs& args,
                                     ElementType type, cudaStream_t stream);
absl::Status LaunchPlainPositionGradient(const PlainPositionGradientArgs& args,
                                         ElementType type, cudaStream_t stream);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_VOCABULARY_POSITION_PLAIN_H_
