// Puts samples of different lengths into sequences of one length.

#ifndef MILLRACE_WORKER_DATA_PACKING_H_
#define MILLRACE_WORKER_DATA_PACKING_H_

#include <cstdint>
#include <vector>

namespace millrace {

struct PackedSequence {
  std::vector<int64_t> samples;  // Indices, in their order in the sequence.
  int64_t length = 0;            // The sum over all samples.
};

// Best fit decreasing: each sample, the longest first, goes into the fullest
// sequence that has room for it (Johnson, 1973; at most 11/9 of the fewest
// sequences and one more). Samples of one length come in an order that `seed`
// decides; equal inputs give equal sequences. Lengths are in [1, capacity].
std::vector<PackedSequence> PackSamples(const std::vector<int64_t>& lengths,
                                        int64_t capacity, uint64_t seed);

}  // namespace millrace

#endif  // MILLRACE_WORKER_DATA_PACKING_H_
