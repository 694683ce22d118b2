// SentencePiece in plain C++ types. Its headers define an absl::string_view
// that clashes with Abseil's own, so the source behind this header is the only
// one that includes them, and neither uses Abseil. Everybody else uses
// tokenizer.h.

#ifndef MILLRACE_WORKER_DATA_SENTENCEPIECE_DOOR_H_
#define MILLRACE_WORKER_DATA_SENTENCEPIECE_DOOR_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace millrace {

// Each call returns an empty string, or the library's error message. Nothing
// throws, and nothing is written to stderr.

// Trains on `sentences` with the options of spm_train.
std::string TrainSentencePiece(
    const std::vector<std::string>& sentences,
    const std::map<std::string, std::string>& options, std::string* model);

// Const calls are thread-safe.
class SentencePieceDoor {
 public:
  SentencePieceDoor();
  ~SentencePieceDoor();

  std::string Load(const std::string& model);
  int num_pieces() const;
  int end_of_sentence() const;  // -1 if the model has none.
  std::string Piece(int id) const;
  // Appends to `ids`.
  std::string Encode(const char* text, size_t num_bytes,
                     std::vector<int32_t>* ids) const;
  std::string Decode(const std::vector<int32_t>& ids, std::string* text) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_DATA_SENTENCEPIECE_DOOR_H_
