#include "tests/e2e/equivalence_batches.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace millrace {
namespace {

// SplitMix64's finalizer: spreads neighbouring seeds far apart.
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

absl::Status CheckRequest(const BatchRequest& request) {
  if (request.step >= 1 && request.first_sequence_idx >= 0 &&
      request.first_sequence_idx + request.num_sequences <=
          request.global_batch) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("no such sequences: step ", request.step, ", first ",
                   request.first_sequence_idx, ", ", request.num_sequences,
                   " of ", request.global_batch));
}

uint64_t SeedOf(const BatchRequest& request, int64_t idx) {
  return Mix(Mix(static_cast<uint64_t>(request.split) * 7919 +
                 static_cast<uint64_t>(request.step)) +
             static_cast<uint64_t>(idx));
}

// A row of tokens, each the one before plus a stride of one to three, and their
// targets, from place `at` on.
void FillPattern(uint64_t seed, int64_t vocab_size, int64_t length, int64_t at,
                 const BatchPointers& out) {
  const int64_t stride = 1 + static_cast<int64_t>(seed % 3);
  int64_t token = static_cast<int64_t>((seed >> 32) % vocab_size);
  for (int64_t t = 0; t < length; ++t) {
    const int64_t next = (token + stride) % vocab_size;
    out.tokens[at + t] = static_cast<int32_t>(token);
    out.targets[at + t] = static_cast<int32_t>(next);
    token = next;
  }
}

}  // namespace

absl::Status SyntheticBatches::Fill(const BatchRequest& request,
                                    const BatchPointers& out) {
  RETURN_IF_ERROR(CheckRequest(request));
  for (int64_t i = 0; i < request.num_sequences; ++i) {
    const uint64_t seed = SeedOf(request, request.first_sequence_idx + i);
    const int64_t at = i * sequence_length_;
    const int64_t document =
        static_cast<int64_t>((seed >> 8) & 0xffff) % sequence_length_;
    FillPattern(seed, vocab_size_, sequence_length_, at, out);
    for (int64_t t = 0; t < sequence_length_; ++t) {
      out.document_starts[at + t] =
          static_cast<int32_t>(t >= document ? document : 0);
    }
  }
  return absl::OkStatus();
}

absl::Status PackedBatches::Fill(const BatchRequest& request,
                                 const BatchPointers& out) {
  RETURN_IF_ERROR(CheckRequest(request));
  const int64_t per_sequence = sequence_length_ / document_length_;
  for (int64_t i = 0; i < request.num_sequences * per_sequence; ++i) {
    const int64_t at = i * document_length_;
    FillPattern(SeedOf(request, request.first_sequence_idx * per_sequence + i),
                vocab_size_, document_length_, at, out);
    std::fill_n(out.document_starts + at, document_length_,
                static_cast<int32_t>(at % sequence_length_));
  }
  return absl::OkStatus();
}

}  // namespace millrace
