#include "planner/text/page.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace millrace {
namespace {

// Returns the last space in [begin, room] at which to break, if possible not
// between a number and its unit; npos if there is none.
size_t LastBreak(absl::string_view line, size_t begin, size_t room) {
  size_t any = absl::string_view::npos;
  for (size_t i = std::min(room, line.size() - 1); i >= begin && i > 0; --i) {
    if (line[i] != ' ') continue;
    if (!absl::ascii_isdigit(static_cast<unsigned char>(line[i - 1]))) return i;
    if (any == absl::string_view::npos) any = i;
  }
  return any;
}

}  // namespace

std::string WrapLine(absl::string_view line, size_t indent) {
  std::string text;
  size_t begin = indent;  // No break before this column.
  size_t used = 0;        // Columns taken by the indent.
  while (used + line.size() > kPageColumns) {
    size_t space = LastBreak(line, begin, kPageColumns - used);
    if (space == absl::string_view::npos) space = line.find(' ', begin);
    if (space == absl::string_view::npos) break;
    absl::StrAppend(&text, std::string(used, ' '),
                    absl::StripTrailingAsciiWhitespace(line.substr(0, space)),
                    "\n");
    line = absl::StripLeadingAsciiWhitespace(line.substr(space));
    begin = 0;
    used = indent;
  }
  return absl::StrCat(text, std::string(used, ' '), line);
}

}  // namespace millrace
