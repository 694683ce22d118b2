// The steps of a tokenizer before its model: normalizing a text and cutting it
// into words.

#ifndef MILLRACE_WORKER_TOKENIZE_TEXT_STEPS_H_
#define MILLRACE_WORKER_TOKENIZE_TEXT_STEPS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/tokenize/regex_door.h"
#include "worker/tokenize/tokenizer_spec.h"

namespace millrace {

// A pattern that was compiled. Thread-safe.
class Matcher {
 public:
  // InvalidArgument if a regular expression does not compile.
  static absl::StatusOr<Matcher> Make(const TextPattern& pattern);

  // Calls on_span(begin, end, is_match) for all of `text` in order: matches,
  // some of which may be empty, and what lies between them.
  absl::Status ForEachSpan(
      absl::string_view text, RegexCursor* cursor,
      absl::FunctionRef<absl::Status(size_t, size_t, bool)> on_span) const;

  // `text` with each match replaced by `content`.
  absl::StatusOr<std::string> Replace(absl::string_view text,
                                      absl::string_view content,
                                      RegexCursor* cursor) const;

 private:
  absl::Status ForEachRegexSpan(
      absl::string_view text, RegexCursor* cursor,
      absl::FunctionRef<absl::Status(size_t, size_t, bool)> on_span) const;

  std::string literal_;
  std::unique_ptr<Regex> regex_;  // Null for a literal.
};

class Normalizer {
 public:
  static absl::StatusOr<Normalizer> Make(
      const std::vector<NormalizeStep>& steps);

  // Returns `text`, or what became of it, which lies in `storage`.
  absl::StatusOr<absl::string_view> Normalize(absl::string_view text,
                                              RegexCursor* cursor,
                                              std::string* storage) const;

 private:
  absl::Status Apply(size_t step_idx, absl::string_view text,
                     RegexCursor* cursor, std::string* changed,
                     bool* is_changed) const;

  std::vector<NormalizeStep> steps_;
  std::vector<Matcher> matchers_;  // By step; unused but for kReplace.
};

class PreTokenizer {
 public:
  using OnWord = absl::FunctionRef<absl::Status(absl::string_view)>;

  static absl::StatusOr<PreTokenizer> Make(
      const std::vector<PreTokenizeStep>& steps);

  // Calls `on_word` for each word, none of them empty. `at_begin`: the text
  // begins where the whole text began.
  absl::Status Split(absl::string_view text, bool at_begin, RegexCursor* cursor,
                     OnWord on_word) const {
    return Run(0, text, at_begin, cursor, on_word);
  }

 private:
  absl::Status Run(size_t step_idx, absl::string_view text, bool at_begin,
                   RegexCursor* cursor, OnWord on_word) const;
  absl::Status RunSplit(size_t step_idx, absl::string_view text,
                        RegexCursor* cursor, OnWord on_word) const;
  absl::Status RunMetaspace(size_t step_idx, absl::string_view text,
                            bool at_begin, RegexCursor* cursor,
                            OnWord on_word) const;

  std::vector<PreTokenizeStep> steps_;
  std::vector<Matcher> matchers_;  // By step; unused but for kSplit.
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_TOKENIZE_TEXT_STEPS_H_
