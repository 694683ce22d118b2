#include "planner/text/page.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace millrace {
namespace {

// Goal: no line passes the page, and no word is lost or cut. Method: lines of
// words of many lengths, with several indents; the words that come out are
// those that went in.
TEST(PageTest, BreaksLinesAtSpaces) {
  for (const size_t length : {1u, 3u, 7u, 20u, 60u}) {
    for (const size_t indent : {0u, 2u, 13u, 70u}) {
      if (indent + length > kPageColumns) continue;
      const std::vector<std::string> words(40, std::string(length, 'w'));
      const std::string text = WrapLine(absl::StrJoin(words, " "), indent);
      std::vector<std::string> found;
      for (const absl::string_view line : absl::StrSplit(text, '\n')) {
        EXPECT_LE(line.size(), kPageColumns);
        EXPECT_EQ(line.find_first_not_of(' '), found.empty() ? 0 : indent);
        for (const absl::string_view word :
             absl::StrSplit(line, ' ', absl::SkipEmpty())) {
          found.emplace_back(word);
        }
      }
      EXPECT_EQ(found, words);
    }
  }
}

// Goal: the columns in front of a cell stay as they are, and a word that is
// wider than the page is not cut. Method: one line of each.
TEST(PageTest, KeepsColumnsAndWideWords) {
  EXPECT_EQ(WrapLine("  name   a short text", 9), "  name   a short text");
  const std::string wide(kPageColumns + 5, 'w');
  EXPECT_EQ(WrapLine(wide, 4), wide);
  EXPECT_EQ(WrapLine("  name   " + wide, 9), "  name   " + wide);
  EXPECT_EQ(WrapLine("  name   " + wide + " next", 9),
            "  name   " + wide + "\n         next");
  EXPECT_EQ(WrapLine("", 4), "");
}

// Goal: a figure stays beside its unit, unless nothing else is on the line.
// Method: a line whose last space in reach is before the unit; figures alone.
TEST(PageTest, KeepsFiguresWithUnits) {
  const std::string words(kPageColumns - 8, 'w');
  EXPECT_EQ(WrapLine(words + " 24.0 MiB", 2), words + "\n  24.0 MiB");
  const std::string figure(kPageColumns - 1, '7');
  EXPECT_EQ(WrapLine(figure + " MiB", 2), figure + "\n  MiB");
}

}  // namespace
}  // namespace millrace
