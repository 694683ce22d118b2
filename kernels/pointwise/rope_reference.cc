#include "kernels/pointwise/rope.h"

namespace millrace {

void RopeReference(const RopeArgs& args) {
  const int64_t half = args.num_turned() / 2;
  const int64_t num_heads_of_row = args.num_heads + 2 * args.num_kv_heads;
  for (int64_t t = 0; t < args.num_tokens; ++t) {
    const int64_t position = t % args.sequence_length;
    for (int64_t n = 0; n < args.num_heads + args.num_kv_heads; ++n) {
      float* head = args.qkv + (t * num_heads_of_row + n) * args.head_dim;
      for (int64_t i = 0; i < half; ++i) {
        const double cosine = args.table[position * half + i];
        const double sine =
            (args.inverse ? -1.0 : 1.0) *
            args.table[(args.sequence_length + position) * half + i];
        const double a = head[i];
        const double b = head[i + half];
        head[i] = static_cast<float>(a * cosine - b * sine);
        head[i + half] = static_cast<float>(b * cosine + a * sine);
      }
    }
  }
}

}  // namespace millrace
