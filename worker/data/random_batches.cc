#include "worker/data/random_batches.h"

#include "absl/strings/str_cat.h"

namespace millrace {
namespace {

// The finalizer of SplitMix64 (Steele, Lea and Flood, 2014): every input bit
// reaches every output bit.
uint64_t MixBits(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// SplitMix64's increment between the numbers of a sequence.
constexpr uint64_t kStride = 0x9e3779b97f4a7c15u;

}  // namespace

absl::Status RandomBatches::Fill(const BatchRequest& request,
                                 const BatchPointers& out) {
  if (request.step < 1 || request.first_sequence_idx < 0 ||
      request.first_sequence_idx + request.num_sequences >
          request.global_batch) {
    return absl::InvalidArgumentError(
        absl::StrCat("no such sequences: step ", request.step, ", first ",
                     request.first_sequence_idx, ", ", request.num_sequences,
                     " of ", request.global_batch));
  }
  const auto vocab_size = static_cast<uint64_t>(options_.vocab_size);
  const int64_t length = options_.sequence_length;
  const uint64_t of_step = MixBits(
      MixBits(options_.seed * kStride + static_cast<uint64_t>(request.split)) +
      static_cast<uint64_t>(request.step));
  for (int64_t i = 0; i < request.num_sequences; ++i) {
    uint64_t state = MixBits(
        of_step + static_cast<uint64_t>(request.first_sequence_idx + i));
    const auto next_token = [&] {
      state += kStride;
      return static_cast<int32_t>(MixBits(state) % vocab_size);
    };
    int32_t token = next_token();
    for (int64_t at = i * length; at < (i + 1) * length; ++at) {
      out.tokens[at] = token;
      token = next_token();
      out.targets[at] = token;
      out.document_starts[at] = 0;
    }
  }
  return absl::OkStatus();
}

}  // namespace millrace
