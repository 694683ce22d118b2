#include "kernels/vocabulary/embedding.h"

namespace millrace {

void EmbeddingForwardReference(const EmbeddingForwardArgs& args) {
  for (int64_t t = 0; t < args.num_tokens; ++t) {
    const int64_t row = args.tokens[t] - args.vocab_begin;
    const bool mine = row >= 0 && row < args.vocab_rows;
    for (int64_t h = 0; h < args.hidden; ++h) {
      args.x[t * args.hidden + h] =
          mine ? args.scale * args.weight[row * args.hidden + h] : 0.0f;
    }
  }
}

void EmbeddingBackwardReference(const EmbeddingBackwardArgs& args) {
  for (int64_t row = 0; row < args.vocab_rows; ++row) {
    for (int64_t h = 0; h < args.hidden; ++h) {
      float& gradient = args.d_weight[row * args.hidden + h];
      double sum = args.accumulate ? gradient : 0.0;
      for (int64_t t = 0; t < args.num_tokens; ++t) {
        if (args.tokens[t] - args.vocab_begin == row) {
          sum += double{args.scale} * args.d_x[t * args.hidden + h];
        }
      }
      gradient = static_cast<float>(sum);
    }
  }
}

}  // namespace millrace
