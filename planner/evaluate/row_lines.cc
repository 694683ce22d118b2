#include "planner/evaluate/row_lines.h"

#include <cstddef>
#include <iterator>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/json.h"

namespace millrace {
namespace {

using Json = nlohmann::json;

// Counts the lines that a parser has read.
class CountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator(const char* at, int* line) : at_(at), line_(line) {}

  reference operator*() const { return *at_; }
  CountingIterator& operator++() {
    if (*at_ == '\n') ++*line_;
    ++at_;
    return *this;
  }
  bool operator==(const CountingIterator& other) const {
    return at_ == other.at_;
  }
  bool operator!=(const CountingIterator& other) const {
    return at_ != other.at_;
  }

 private:
  const char* at_;
  int* line_;
};

// Follows the parser through a document.
class LineFinder {
 public:
  explicit LineFinder(const int* line) : line_(line) {}

  // As the parser calls back: `num_open` lists and objects are open.
  void See(size_t num_open, Json::parse_event_t event, const Json& parsed) {
    using Event = Json::parse_event_t;
    const bool opens =
        event == Event::object_start || event == Event::array_start;
    if (num_open == 0 && event == Event::array_start) row_depth_ = 1;
    if ((opens || event == Event::value) && num_open == row_depth_ &&
        InRows()) {
      rows_.emplace_back();
      rows_.back().line = *line_;
    }
    if (opens) {
      open_.resize(num_open);
      open_.emplace_back();
    } else if (event == Event::key) {
      SeeKey(num_open, parsed.get<std::string>());
    }
  }

  std::vector<RowLines>& rows() { return rows_; }  // By index.
  bool has_two_lists() const { return has_two_lists_; }

 private:
  struct Open {
    std::set<std::string> keys;  // So far; empty for a list.
    std::string key;             // The last of them.
  };

  bool InRows() const {
    return row_depth_ == 1 || (!open_.empty() && open_[0].key == "rows");
  }

  void SeeKey(size_t num_open, const std::string& key) {
    open_.resize(num_open);
    Open& innermost = open_.back();
    const bool is_new = innermost.keys.insert(key).second;
    innermost.key = key;
    has_two_lists_ |= num_open < row_depth_ && !is_new && InRows();
    if (num_open <= row_depth_ || !InRows()) return;
    std::string path;
    for (size_t i = row_depth_; i < num_open; ++i) {
      if (open_[i].key.empty()) continue;  // A list.
      absl::StrAppend(&path, path.empty() ? "" : ".", open_[i].key);
    }
    RowLines& row = rows_.back();
    if (!is_new && row.repeated.empty()) row.repeated = path;
    row.line_by_key.emplace(std::move(path), *line_);
  }

  const int* line_;
  size_t row_depth_ = 2;  // 1 where the document is a list.
  std::vector<Open> open_;
  bool has_two_lists_ = false;
  std::vector<RowLines> rows_;
};

// What the library says of bad text, without its own name and place.
std::string Explanation(const Json::exception& error) {
  const std::string what = error.what();
  const size_t at = what.find("syntax error");
  if (at != what.npos) {
    // NaN, say, as some programs write it.
    const bool is_word = what.find("invalid literal") != what.npos;
    return absl::StrCat(what.substr(at),
                        is_word ? "; what is not known is null" : "");
  }
  const size_t bracket = what.find("] ");
  return bracket == what.npos ? what : what.substr(bracket + 2);
}

}  // namespace

int RowLines::Of(const std::string& key) const {
  const auto found = line_by_key.find(key);
  return found == line_by_key.end() ? line : found->second;
}

absl::StatusOr<RowDocument> ParseRows(absl::string_view json,
                                      const std::string& file_name) {
  if (const absl::Status shallow = CheckJsonNesting(json); !shallow.ok()) {
    // "line 3: ..." becomes "FILE:3: ...".
    absl::string_view message = shallow.message();
    absl::ConsumePrefix(&message, "line ");
    return absl::InvalidArgumentError(absl::StrCat(file_name, ":", message));
  }
  int line = 1;
  LineFinder finder(&line);
  auto error = [&](int at, absl::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat(file_name, ":", at, ": ", what));
  };
  Json document;
  try {
    document = Json::parse(
        CountingIterator(json.data(), &line),
        CountingIterator(json.data() + json.size(), &line),
        [&](int num_open, Json::parse_event_t event, const Json& parsed) {
          finder.See(static_cast<size_t>(num_open), event, parsed);
          return true;
        });
  } catch (const Json::exception& exception) {  // Of too large numbers, too.
    return error(line, absl::StrCat("not JSON: ", Explanation(exception)));
  }
  if (finder.has_two_lists()) {
    return error(1, "\"rows\" is given twice; keep one list of rows");
  }
  RowDocument result;
  if (document.is_array()) {
    result.rows = std::move(document);
  } else if (document.is_object() && document.contains("rows") &&
             document["rows"].is_array()) {
    result.rows = std::move(document["rows"]);
  } else {
    return error(1,
                 "expected an object with a list \"rows\"; docs/evaluate.md "
                 "shows one");
  }
  result.lines = std::move(finder.rows());
  return result;
}

}  // namespace millrace
