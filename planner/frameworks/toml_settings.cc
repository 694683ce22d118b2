// The door to the TOML library.

#include <algorithm>
#include <exception>
#include <new>
#include <sstream>
#include <string>
#include <toml.hpp>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "planner/frameworks/settings.h"

namespace millrace {
namespace {

// The library reads nested values by recursion, and no settings nest as deep.
constexpr int kMaxTomlNesting = 32;

// The library looks for the line of each value from the start of the text.
constexpr size_t kMaxTomlBytes = size_t{256} << 10;

// The first line on which lists and tables, or the words of a dotted key, nest
// deeper; 0 where none does. Brackets in texts count as well, which only a text
// with that many more opening than closing ones would notice.
int LineOfDeepToml(absl::string_view text) {
  int depth = 0;
  int number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    int num_dots = 0;
    bool in_key = true;
    for (const char c : line) {
      if (c == '[' || c == '{') ++depth;
      if (c == ']' || c == '}') --depth;
      if (c == '=' || c == ',' || c == '#') in_key = false;
      if (c == '.' && in_key) ++num_dots;
      if (depth > kMaxTomlNesting || num_dots > kMaxTomlNesting) return number;
    }
    depth = std::max(depth, 0);
  }
  return 0;
}

// A scalar or a list of scalars, or of such lists with bars between them.
std::string ValueText(const toml::value& value) {
  if (value.is_string()) return value.as_string().str;
  if (!value.is_array()) return toml::format(value);
  std::vector<std::string> items;
  for (const toml::value& item : value.as_array()) {
    items.push_back(ValueText(item));
  }
  const bool holds_lists = !items.empty() && value.as_array()[0].is_array();
  return absl::StrJoin(items, holds_lists ? " | " : " ");
}

void AddTable(const toml::table& table, const std::string& prefix,
              Settings* settings) {
  for (const auto& [name, value] : table) {
    if (value.is_table()) {
      AddTable(value.as_table(), absl::StrCat(prefix, name, "."), settings);
      continue;
    }
    settings->entries.push_back(
        {.key = prefix + name,
         .value = ValueText(value),
         .line = static_cast<int>(value.location().line())});
  }
}

// The library's messages draw the line over several lines; the first says what
// is wrong.
std::string FirstLine(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

}  // namespace

absl::StatusOr<Settings> ReadTomlSettings(absl::string_view text,
                                          const std::string& file_name) {
  Settings settings{.file_name = file_name};
  if (text.size() > kMaxTomlBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(file_name, ":1: ", text.size(), " bytes; settings have ",
                     kMaxTomlBytes, " at most"));
  }
  if (const int line = LineOfDeepToml(text); line > 0) {
    return absl::InvalidArgumentError(absl::StrCat(file_name, ":", line,
                                                   ": nested deeper than ",
                                                   kMaxTomlNesting, " levels"));
  }
  std::istringstream stream{std::string(text)};
  try {
    const toml::value root = toml::parse(stream, file_name);
    AddTable(root.as_table(), "", &settings);
  } catch (const toml::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat(file_name, ":", error.location().line(),
                     ": not valid TOML: ", FirstLine(error.what())));
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(
        absl::StrCat(file_name, ": no memory to read it"));
  } catch (const std::exception& error) {  // Of a number out of range, say.
    return absl::InvalidArgumentError(absl::StrCat(
        file_name, ":1: not valid TOML: ", FirstLine(error.what())));
  }
  // Tables come in no order.
  std::ranges::stable_sort(settings.entries, {}, [](const Setting& setting) {
    return std::tie(setting.line, setting.key);
  });
  return settings;
}

}  // namespace millrace
