// A Tokenizer turns UTF-8 text into token ids and back: SentencePiece behind
// one door. It is trained on a sample of the job's own text, or loaded from a
// model file.

#ifndef MILLRACE_WORKER_DATA_TOKENIZER_H_
#define MILLRACE_WORKER_DATA_TOKENIZER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace millrace {

// Trains a byte-pair encoding of exactly `vocab_size` pieces, 256 of them
// bytes, so that any text can be encoded without loss. `sample` holds pieces of
// text, best cut after line ends and a few KiB long; longer than 64 KiB are
// left out. Equal inputs give equal models. Returns the serialized model, or
// InvalidArgument saying which vocabulary sizes this text allows.
absl::StatusOr<std::string> TrainTokenizer(
    const std::vector<std::string>& sample, int64_t vocab_size);

// The size of the first chunk of `text`, at most `max_bytes` (four or more): up
// to the last line end, else the last whole character. All of a shorter text.
size_t FirstChunkBytes(absl::string_view text, size_t max_bytes);

// Thread-safe once made.
class Tokenizer {
 public:
  // `model` is a serialized SentencePiece model; `name` (a path) is for errors.
  // InvalidArgument if it cannot be read, has more pieces than `vocab_size`, or
  // has no end-of-sentence piece to put between documents.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromModel(
      absl::string_view model, const std::string& name, int64_t vocab_size);
  ~Tokenizer();

  int64_t num_pieces() const;
  int32_t end_of_document() const;

  // Appends the ids of one document, which must be UTF-8, and then the
  // end-of-document token.
  absl::Status EncodeDocument(absl::string_view text,
                              std::vector<int32_t>* tokens) const;
  absl::StatusOr<std::string> Decode(const std::vector<int32_t>& tokens) const;

 private:
  class Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_DATA_TOKENIZER_H_
