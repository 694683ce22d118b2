// Python's methods of strings, on UTF-8.

#ifndef MILLRACE_WORKER_CHAT_TEMPLATE_TEXT_H_
#define MILLRACE_WORKER_CHAT_TEMPLATE_TEXT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/chat/template_functions.h"

namespace millrace {

// Drops characters of `set` from the ends; an empty set is white space.
std::string StripText(absl::string_view text, absl::string_view set,
                      bool at_begin, bool at_end);
// An empty separator: runs of white space. `max_splits` below zero: all.
std::vector<std::string> SplitText(absl::string_view text,
                                   absl::string_view separator,
                                   int64_t max_splits, bool from_end);
std::vector<std::string> SplitLines(absl::string_view text);
// At most `count` times; below zero: all.
absl::StatusOr<std::string> ReplaceText(absl::string_view text,
                                        absl::string_view from,
                                        absl::string_view to, int64_t count,
                                        TemplateMeter& meter);
// "upper", "lower", "title" or "capitalize".
std::string ChangeCase(absl::string_view text, absl::string_view method);
// "isdigit", "isalpha", "isalnum", "isspace", "isupper" or "islower". Letters
// and digits beyond ASCII count as letters.
bool IsTextOf(absl::string_view text, absl::string_view method);

}  // namespace millrace

#endif  // MILLRACE_WORKER_CHAT_TEMPLATE_TEXT_H_
