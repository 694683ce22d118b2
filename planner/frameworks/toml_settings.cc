// Only this file includes the TOML library.

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

// The library reads nested values by recursion. No real settings nest as
// deeply.
constexpr int kMaxTomlNesting = 32;

// The library searches for the line of each value from the start of the text.
constexpr size_t kMaxTomlBytes = size_t{256} << 10;

// Returns the first line on which brackets, or the words of a dotted key, nest
// deeper than the limit; 0 if there is none. It also counts brackets inside
// quoted text, which matters only if such text has more than 32 unclosed ones.
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

// Writes a scalar, a list of scalars, or a list of lists with bars between
// them.
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

// Returns the first line of the library's message, which says what is wrong.
// The other lines draw the place in the file.
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
  } catch (const std::exception& error) {  // For example a number out of range.
    return absl::InvalidArgumentError(absl::StrCat(
        file_name, ":1: not valid TOML: ", FirstLine(error.what())));
  }
  // The library returns tables in no fixed order.
  std::ranges::stable_sort(settings.entries, {}, [](const Setting& setting) {
    return std::tie(setting.line, setting.key);
  });
  return settings;
}

}  // namespace millrace
