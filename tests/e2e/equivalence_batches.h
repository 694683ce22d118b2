// Batches without files: a pure function of (split, step, sequence), with
// documents that begin inside sequences and a pattern to learn.
// PackedBatches has documents of one length instead, of which a sequence holds
// as many as fit: the same documents in the same order at any length of
// sequences.

#ifndef MILLRACE_TESTS_E2E_EQUIVALENCE_BATCHES_H_
#define MILLRACE_TESTS_E2E_EQUIVALENCE_BATCHES_H_

#include <cstdint>

#include "worker/data/batch_source.h"

namespace millrace {

class SyntheticBatches : public BatchSource {
 public:
  SyntheticBatches(int64_t vocab_size, int64_t sequence_length)
      : vocab_size_(vocab_size), sequence_length_(sequence_length) {}

  absl::Status Fill(const BatchRequest& request,
                    const BatchPointers& out) override;

 private:
  const int64_t vocab_size_;
  const int64_t sequence_length_;
};

class PackedBatches : public BatchSource {
 public:
  // `document_length` divides `sequence_length`.
  PackedBatches(int64_t vocab_size, int64_t sequence_length,
                int64_t document_length)
      : vocab_size_(vocab_size),
        sequence_length_(sequence_length),
        document_length_(document_length) {}

  absl::Status Fill(const BatchRequest& request,
                    const BatchPointers& out) override;

 private:
  const int64_t vocab_size_;
  const int64_t sequence_length_;
  const int64_t document_length_;
};

}  // namespace millrace

#endif  // MILLRACE_TESTS_E2E_EQUIVALENCE_BATCHES_H_
