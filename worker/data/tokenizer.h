// A Tokenizer turns UTF-8 text into token ids and back: the one door to both
// kinds, SentencePiece models and Hugging Face's tokenizer.json. It is trained
// on a sample of the job's own text, or loaded.

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
#include "worker/tokenize/json_tokenizer.h"

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

// A tokenizer as it lies on disk.
struct TokenizerFiles {
  std::string name;     // The path, for errors.
  std::string content;  // A SentencePiece model or a tokenizer.json.
  // The token that ends a document: what the job says, else a file beside a
  // tokenizer.json. Empty: the model's own.
  std::string end_of_document;
};

// Reads a model, a tokenizer.json, or the tokenizer.json of a folder; which one
// it is, the content tells. The token that ends a document comes from
// `end_of_document`; if that is empty, for a tokenizer.json, from the first
// file beside it that says one: tokenizer_config.json, special_tokens_map.json
// (eos_token), config.json (eos_token_id). InvalidArgument if none does.
absl::StatusOr<TokenizerFiles> ReadTokenizerFiles(
    const std::string& path, const std::string& end_of_document);
// A tokenizer.json, not a SentencePiece model.
bool IsTokenizerJson(absl::string_view content);

// Thread-safe once made.
class Tokenizer {
 public:
  // InvalidArgument if the content cannot be read, has ids of `vocab_size` or
  // above, or lacks the token that ends a document.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromFiles(
      const TokenizerFiles& files, int64_t vocab_size);
  // The same of a SentencePiece model.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromModel(
      absl::string_view model, const std::string& name, int64_t vocab_size);
  virtual ~Tokenizer();

  virtual int64_t num_pieces() const = 0;
  int32_t end_of_document() const { return end_of_document_; }

  // Appends the ids of one document, which must be UTF-8, and then the
  // end-of-document token. Nothing comes before it: the begin token of a
  // tokenizer.json's template is for prompts.
  virtual absl::Status EncodeDocument(absl::string_view text,
                                      std::vector<int32_t>* tokens) const = 0;
  // InvalidArgument for an id below zero or above the largest.
  virtual absl::StatusOr<std::string> Decode(
      const std::vector<int32_t>& tokens) const = 0;
  // Null for a SentencePiece model.
  virtual const JsonTokenizer* json_tokenizer() const { return nullptr; }

 protected:
  explicit Tokenizer(int32_t end_of_document)
      : end_of_document_(end_of_document) {}

 private:
  const int32_t end_of_document_;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_DATA_TOKENIZER_H_
