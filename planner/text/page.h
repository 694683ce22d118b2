// Breaks printed text into lines that fit a page.

#ifndef MILLRACE_PLANNER_TEXT_PAGE_H_
#define MILLRACE_PLANNER_TEXT_PAGE_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace millrace {

// No printed line is longer, unless one word is.
inline constexpr size_t kPageColumns = 110;

// Breaks `line` at spaces so that it fits the page. Keeps a number beside its
// unit if possible. Lines after the first start with `indent` spaces. A word
// that is wider than the page stays whole. Neither `line` nor the result has a
// \n or a space at its end.
std::string WrapLine(absl::string_view line, size_t indent);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_TEXT_PAGE_H_
