// Rotary position embedding (Su et al., "RoFormer", 2021), with the pairing
// that Llama checkpoints in the Hugging Face format use: element i of a head
// turns with element i + D/2, by the angle position * theta^(-2i/D).

#ifndef MILLRACE_KERNELS_POINTWISE_ROPE_H_
#define MILLRACE_KERNELS_POINTWISE_ROPE_H_

#include <cstdint>

#include "absl/status/status.h"

namespace millrace {

// The cosines, then the sines: [2, sequence_length, head_dim / 2] floats,
// computed in double and rounded once.
int64_t RopeTableBytes(int64_t sequence_length, int64_t head_dim);

// How the frequencies theta^(-2i/D) are scaled for sequences longer than the
// `original_length` that a model saw first, as Llama 3.1 (2024) does it. A
// wavelength is 2 pi over the frequency, in tokens. Frequencies of wavelengths
// below original_length / high_freq_factor are kept, those above
// original_length / low_freq_factor are divided by `factor`, and those between
// are blended linearly in original_length / wavelength.
struct RopeFrequencyScaling {
  double factor = 1;  // 1: no scaling; the rest is then unused.
  double low_freq_factor = 0;
  double high_freq_factor = 0;  // Above low_freq_factor.
  int64_t original_length = 0;  // At least one.
  // All frequencies are divided by `factor`; the three above are then unused.
  bool is_linear = false;
  // [D/2]: what divides each frequency, above zero; null: nothing does.
  const double* divisors = nullptr;
  double scale = 1;  // A factor on all cosines and sines.
};

// InvalidArgument if sequence_length is below one, head_dim odd or below two,
// theta not above zero, or the scaling one that cannot be.
absl::Status FillRopeTable(float* table, int64_t sequence_length,
                           int64_t head_dim, double theta,
                           const RopeFrequencyScaling& scaling = {});

struct RopeArgs {
  float* qkv;  // [num_tokens, (num_heads + 2 num_kv_heads) head_dim]: the query
               // heads, the key heads (both turned in place), the value heads
               // (untouched).
  const float* table;       // From FillRopeTable() of sequence_length and
                            // num_turned().
  int64_t num_tokens;       // Token t has position t % sequence_length.
  int64_t sequence_length;  // At least one.
  int64_t num_heads;        // At least one, as is num_kv_heads.
  int64_t num_kv_heads;
  int64_t head_dim;  // Even.
  bool inverse;      // Turns back: the backward pass.
  // Elements at the start of each head that turn, as a head of so many would;
  // even, and the table's size. 0: all of them.
  int64_t rotary_dim = 0;

  int64_t num_turned() const { return rotary_dim > 0 ? rotary_dim : head_dim; }
};

// InvalidArgument names a bad shape. Does not depend on num_threads.
absl::Status Rope(const RopeArgs& args, int num_threads);

// The meaning of the kernel in plain loops.
void RopeReference(const RopeArgs& args);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_POINTWISE_ROPE_H_
