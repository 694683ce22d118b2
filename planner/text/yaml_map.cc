#include "planner/text/yaml_map.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "planner/text/nearest_word.h"

namespace millrace {

void YamlErrors::Add(const YamlTree& at, absl::string_view path,
                     absl::string_view what) {
  errors_.push_back(absl::StrCat(file_name_, ":", at.line, ": ", path,
                                 path.empty() ? "" : ": ", what));
}

absl::Status YamlErrors::status() const {
  if (errors_.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrJoin(errors_, "\n"));
}

YamlMap::YamlMap(const YamlTree& tree, std::string path, YamlErrors* errors)
    : tree_(tree),
      path_(std::move(path)),
      errors_(*errors),
      is_map_(tree.kind == YamlTree::Kind::kMap) {
  if (is_map_) return;
  errors_.Add(tree_, path_,
              absl::StrCat("expected a map, found ", DescribeYaml(tree_)));
}

const YamlTree* YamlMap::Entry(absl::string_view key, Need need,
                               absl::string_view expected) {
  if (!is_map_) return nullptr;
  keys_.emplace_back(key);
  const YamlTree* entry = Find(key);
  if (entry == nullptr && need == Need::kRequired) {
    Error(key, absl::StrCat("missing; expected ", expected));
  }
  return entry;
}

const YamlTree* YamlMap::List(absl::string_view key, Need need) {
  const YamlTree* entry = Entry(key, need, "a list");
  if (entry == nullptr || entry->kind == YamlTree::Kind::kList) return entry;
  Expected(*entry, key, "a list");
  return nullptr;
}

const YamlTree* YamlMap::Map(absl::string_view key, Need need) {
  const YamlTree* entry = Entry(key, need, "a map");
  if (entry == nullptr || entry->kind == YamlTree::Kind::kMap) return entry;
  Expected(*entry, key, "a map");
  return nullptr;
}

bool YamlMap::Text(absl::string_view key, Need need, std::string* out) {
  constexpr absl::string_view kExpected = "text";
  const YamlTree* entry = Scalar(key, need, kExpected);
  if (entry == nullptr) return false;
  if (entry->scalar.empty()) {
    Expected(*entry, key, kExpected);
    return false;
  }
  *out = entry->scalar;
  return true;
}

bool YamlMap::Words(absl::string_view key, Need need,
                    std::vector<std::string>* out) {
  constexpr absl::string_view kExpected = "a word or a list of words";
  const YamlTree* entry = Entry(key, need, kExpected);
  if (entry == nullptr) return false;
  std::vector<std::string> words;
  const auto is_word = [](const YamlTree& item) {
    return item.kind == YamlTree::Kind::kScalar && !item.scalar.empty();
  };
  if (is_word(*entry)) {
    words.push_back(entry->scalar);
  } else if (entry->kind == YamlTree::Kind::kList &&
             std::ranges::all_of(entry->children, is_word)) {
    for (const YamlTree& item : entry->children) words.push_back(item.scalar);
  }
  if (words.empty()) {
    Expected(*entry, key, kExpected);
    return false;
  }
  *out = std::move(words);
  return true;
}

bool YamlMap::Integer(absl::string_view key, Need need, int64_t least,
                      int64_t* out) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const std::string expected =
      absl::StrCat("an integer from ", least, " to ", kMost);
  const YamlTree* entry = Scalar(key, need, expected);
  if (entry == nullptr) return false;
  int64_t value = 0;
  if (!absl::SimpleAtoi(entry->scalar, &value) || value < least ||
      value > kMost) {
    Expected(*entry, key, expected);
    return false;
  }
  *out = value;
  return true;
}

bool YamlMap::Number(absl::string_view key, Need need, double* out) {
  constexpr absl::string_view kExpected = "a number above 0";
  const YamlTree* entry = Scalar(key, need, kExpected);
  if (entry == nullptr) return false;
  double value = 0;
  if (!absl::SimpleAtod(entry->scalar, &value) || !(value > 0) ||
      !std::isfinite(value)) {
    Expected(*entry, key, kExpected);
    return false;
  }
  *out = value;
  return true;
}

bool YamlMap::Flag(absl::string_view key, Need need, bool* out) {
  constexpr absl::string_view kExpected = "true or false";
  const YamlTree* entry = Scalar(key, need, kExpected);
  if (entry == nullptr) return false;
  if (entry->scalar != "true" && entry->scalar != "false") {
    Expected(*entry, key, kExpected);
    return false;
  }
  *out = entry->scalar == "true";
  return true;
}

int YamlMap::IndexOfWord(absl::string_view key, Need need,
                         const std::vector<std::string>& words) {
  const std::string expected =
      absl::StrCat(absl::StrJoin(words.begin(), words.end() - 1, ", "), " or ",
                   words.back());
  const YamlTree* entry = Scalar(key, need, expected);
  if (entry == nullptr) return -1;
  const auto found = std::ranges::find(words, entry->scalar);
  if (found != words.end()) return static_cast<int>(found - words.begin());
  Expected(*entry, key, expected);
  return -1;
}

void YamlMap::Finish() {
  if (!is_map_) return;
  std::set<std::string> seen;
  for (const YamlTree& entry : tree_.children) {
    if (!seen.insert(entry.key).second) {
      errors_.Add(entry, PathOf(entry.key), "given twice; remove one");
    }
    if (std::ranges::find(keys_, entry.key) != keys_.end()) continue;
    const auto nearest = NearestWord(entry.key, keys_);
    errors_.Add(
        entry, PathOf(entry.key),
        nearest.has_value()
            ? absl::StrCat("unknown key; did you mean '", *nearest, "'?")
            : absl::StrCat("unknown key; known keys here: ",
                           absl::StrJoin(keys_, ", ")));
  }
}

void YamlMap::Error(absl::string_view key, absl::string_view what) {
  const YamlTree* entry = Find(key);
  errors_.Add(entry == nullptr ? tree_ : *entry, PathOf(key), what);
}

std::string YamlMap::PathOf(absl::string_view key) const {
  return absl::StrCat(path_, path_.empty() || key.empty() ? "" : ".", key);
}

const YamlTree* YamlMap::Find(absl::string_view key) const {
  const auto found = std::ranges::find(tree_.children, key, &YamlTree::key);
  return found == tree_.children.end() ? nullptr : &*found;
}

const YamlTree* YamlMap::Scalar(absl::string_view key, Need need,
                                absl::string_view expected) {
  const YamlTree* entry = Entry(key, need, expected);
  if (entry == nullptr || entry->kind == YamlTree::Kind::kScalar) return entry;
  Expected(*entry, key, expected);
  return nullptr;
}

void YamlMap::Expected(const YamlTree& entry, absl::string_view key,
                       absl::string_view expected) {
  errors_.Add(
      entry, PathOf(key),
      absl::StrCat("expected ", expected, ", found ", DescribeYaml(entry)));
}

}  // namespace millrace
