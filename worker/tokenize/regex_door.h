// Regular expressions as Hugging Face's `tokenizers` runs them: the only way to
// the Oniguruma library, which that library uses too.

#ifndef MILLRACE_WORKER_TOKENIZE_REGEX_DOOR_H_
#define MILLRACE_WORKER_TOKENIZE_REGEX_DOOR_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace millrace {

struct RegexMatch {
  size_t begin;
  size_t end;  // May equal `begin`.
};

// Goes through the matches of one text. One thread uses it at a time.
class RegexCursor {
 public:
  RegexCursor();
  ~RegexCursor();
  RegexCursor(const RegexCursor&) = delete;
  RegexCursor& operator=(const RegexCursor&) = delete;

 private:
  friend class Regex;
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Thread-safe once made.
class Regex {
 public:
  // InvalidArgument with Oniguruma's reason.
  static absl::StatusOr<Regex> Compile(absl::string_view pattern);
  Regex(Regex&& other) noexcept;
  Regex& operator=(Regex&& other) noexcept;
  ~Regex();

  // Finds the first match at or after `from`. False if there is none.
  // ResourceExhausted if matching backtracks without end, which the library
  // counts, so that it does not depend on the machine.
  absl::StatusOr<bool> Find(absl::string_view text, size_t from,
                            RegexCursor* cursor, RegexMatch* match) const;

 private:
  class Impl;
  explicit Regex(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_TOKENIZE_REGEX_DOOR_H_
