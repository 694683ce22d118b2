// Learned positions over a shard of their table: rows [first_row, first_row +
// num_rows). Tokens follow each other in sequences; a token's position is its
// place in its sequence. Positions of other shards change nothing, so that
// summing over all shards gives the whole table's rows.

#ifndef MILLRACE_KERNELS_VOCABULARY_POSITION_H_
#define MILLRACE_KERNELS_VOCABULARY_POSITION_H_

#include <cstdint>

#include "absl/status/status.h"

namespace millrace {

struct PositionShape {
  int64_t num_tokens;       // Zero is allowed.
  int64_t sequence_length;  // At least one.
  int64_t hidden;           // At least one.
  int64_t first_row;        // Not negative.
  int64_t num_rows;         // At least one.
};

// x[t] += weight[t mod sequence_length - first_row].
struct AddPositionsArgs {
  float* x;             // [num_tokens, hidden]
  const float* weight;  // [num_rows, hidden]
  PositionShape shape;
};

// d_weight[r] (+)= sum of d_x over the tokens of position first_row + r.
struct PositionGradientArgs {
  float* d_weight;   // [num_rows, hidden]
  const float* d_x;  // [num_tokens, hidden]
  PositionShape shape;
  bool accumulate;  // d_weight is added to, not overwritten.
};

// InvalidArgument names a bad shape. A row's gradient is summed in token order,
// so results do not depend on num_threads.
absl::Status AddPositions(const AddPositionsArgs& args, int num_threads);
absl::Status PositionGradient(const PositionGradientArgs& args,
                              int num_threads);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_VOCABULARY_POSITION_H_
