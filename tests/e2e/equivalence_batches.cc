#include "tests/e2e/equivalence_batches.h"

#include "absl/strings/str_cat.h"

namespace millrace {
namespace {

// SplitMix64's finalizer: spreads neighbouring seeds far apart.
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

absl::Status SyntheticBatches::Fill(const BatchRequest& request,
                                    const BatchPointers& out) {
  if (request.step < 1 || request.first_sequence_idx < 0 ||
      request.first_sequence_idx + request.num_sequences >
          request.global_batch) {
    return absl::InvalidArgumentError(
        absl::StrCat("no such sequences: step ", request.step, ", first ",
                     request.first_sequence_idx, ", ", request.num_sequences,
                     " of ", request.global_batch));
  }
  for (int64_t i = 0; i < request.num_sequences; ++i) {
    const uint64_t seed = Mix(Mix(static_cast<uint64_t>(request.split) * 7919 +
                                  static_cast<uint64_t>(request.step)) +
                              request.first_sequence_idx + i);
    const int64_t stride = 1 + static_cast<int64_t>(seed % 3);
    const int64_t document =
        static_cast<int64_t>((seed >> 8) & 0xffff) % sequence_length_;
    int64_t token = static_cast<int64_t>((seed >> 32) % vocab_size_);
    for (int64_t t = 0; t < sequence_length_; ++t) {
      const int64_t at = i * sequence_length_ + t;
      const int64_t next = (token + stride) % vocab_size_;
      out.tokens[at] = static_cast<int32_t>(token);
      out.targets[at] = static_cast<int32_t>(next);
      out.document_starts[at] =
          static_cast<int32_t>(t >= document ? document : 0);
      token = next;
    }
  }
  return absl::OkStatus();
}

}  // namespace millrace
