// "Did you mean": the known word closest to a mistyped one.

#ifndef MILLRACE_PLANNER_TEXT_NEAREST_WORD_H_
#define MILLRACE_PLANNER_TEXT_NEAREST_WORD_H_

#include <optional>
#include <span>
#include <string>

#include "absl/strings/string_view.h"

namespace millrace {

// Returns the number of characters to insert, delete, replace or swap with a
// neighbour.
int EditDistance(absl::string_view a, absl::string_view b);

// Returns the closest known word, the first of several; nothing if it differs
// in more than a third of its characters.
std::optional<std::string> NearestWord(absl::string_view word,
                                       std::span<const std::string> known);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_TEXT_NEAREST_WORD_H_
