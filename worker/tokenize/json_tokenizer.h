// Turns text into token ids and back as a tokenizer.json says, with the ids
// that Hugging Face's `tokenizers` gives.

#ifndef MILLRACE_WORKER_TOKENIZE_JSON_TOKENIZER_H_
#define MILLRACE_WORKER_TOKENIZE_JSON_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace millrace {

// Thread-safe once made.
class JsonTokenizer {
 public:
  // `json`: the file's content. InvalidArgument names the key that is wrong or
  // not supported, and its value.
  static absl::StatusOr<std::unique_ptr<JsonTokenizer>> Make(
      absl::string_view json);
  ~JsonTokenizer();

  // Pieces and added tokens.
  int64_t num_tokens() const;
  // One above the largest id. Ids may leave gaps.
  int64_t id_limit() const;
  // -1 if there is no such piece or added token.
  int32_t FindToken(absl::string_view content) const;

  // Appends the ids of `text`, with `add_special_tokens` inside the file's
  // template (a begin token, for example). Ill-formed UTF-8 is read as U+FFFD,
  // once for each part that cannot be the begin of a character.
  // ResourceExhausted if a regular expression of the file backtracks without
  // end; InvalidArgument for a text of a gibibyte or more.
  absl::Status Encode(absl::string_view text, bool add_special_tokens,
                      std::vector<int32_t>* ids) const;

  // The text of ids, special tokens included. Ids that have no token give no
  // text.
  absl::StatusOr<std::string> Decode(const std::vector<int32_t>& ids) const;

 private:
  class Impl;
  explicit JsonTokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_TOKENIZE_JSON_TOKENIZER_H_
