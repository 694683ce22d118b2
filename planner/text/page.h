// Text that commands print: lines that fit a page.

#ifndef MILLRACE_PLANNER_TEXT_PAGE_H_
#define MILLRACE_PLANNER_TEXT_PAGE_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace millrace {

// No printed line is longer, unless one word is.
inline constexpr size_t kPageColumns = 110;

// `line` broken at spaces so that it fits the page, a figure beside its unit
// where that is possible. Lines after the first start
// with `indent` spaces. A word that is wider than the page stays whole. `line`
// has no \n and does not end in a space; neither does the result.
std::string WrapLine(absl::string_view line, size_t indent);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_TEXT_PAGE_H_
