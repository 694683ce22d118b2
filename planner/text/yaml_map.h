// Reads one map of a YAML file strictly: every key is asked for by name, and a
// key that is missing, unknown, given twice or of the wrong type is an error
// that says file, line, key and what was expected.

#ifndef MILLRACE_PLANNER_TEXT_YAML_MAP_H_
#define MILLRACE_PLANNER_TEXT_YAML_MAP_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "planner/text/yaml_tree.h"

namespace millrace {

// The errors of one file, in the order in which they were found.
class YamlErrors {
 public:
  explicit YamlErrors(std::string file_name)
      : file_name_(std::move(file_name)) {}

  // "FILE:LINE: PATH: WHAT".
  void Add(const YamlTree& at, absl::string_view path, absl::string_view what);
  // OK if there are none, else InvalidArgument with one error a line.
  absl::Status status() const;

 private:
  const std::string file_name_;
  std::vector<std::string> errors_;
};

// A read leaves its output unchanged if the key is absent or wrong. Call
// Finish() after the last read.
class YamlMap {
 public:
  enum class Need { kRequired, kOptional };

  // Borrows `tree` and `errors`. `path` names the map in messages ("models[2]";
  // empty for the whole file). If the tree is not a map, that is an error, and
  // all reads do nothing.
  YamlMap(const YamlTree& tree, std::string path, YamlErrors* errors);

  // Returns null if the key is absent.
  const YamlTree* Entry(absl::string_view key, Need need,
                        absl::string_view expected);
  // Like Entry(), but neither adds an error nor counts the key as asked for.
  const YamlTree* Find(absl::string_view key) const;
  // Returns null if the key is absent, or is neither a list nor a map.
  const YamlTree* List(absl::string_view key, Need need);
  const YamlTree* Map(absl::string_view key, Need need);
  // Returns null if the key is absent or no scalar.
  const YamlTree* Scalar(absl::string_view key, Need need,
                         absl::string_view expected);

  // Calls read(map) for the map at `key`, for each map of the list at `key`, or
  // read(name, map) for each named map in the map at `key`, and finishes it.
  template <typename Read>
  void Section(absl::string_view key, Need need, Read read) {
    if (const YamlTree* entry = Map(key, need)) ReadMap(*entry, key, read);
  }
  template <typename Read>
  void Items(absl::string_view key, Need need, Read read) {
    const YamlTree* list = List(key, need);
    if (list == nullptr) return;
    for (size_t i = 0; i < list->children.size(); ++i) {
      ReadMap(list->children[i], absl::StrCat(key, "[", i, "]"), read);
    }
  }
  template <typename Read>
  void Named(absl::string_view key, Need need, Read read) {
    Section(key, need, [&](YamlMap& names) {
      for (const YamlTree& entry : names.tree_.children) {
        names.Entry(entry.key, Need::kOptional, "");
        names.ReadMap(entry, entry.key,
                      [&](YamlMap& map) { read(entry.key, map); });
      }
    });
  }

  bool Text(absl::string_view key, Need need, std::string* out);
  // Reads a list of words. A single word counts as a list of one.
  bool Words(absl::string_view key, Need need, std::vector<std::string>* out);
  // Reads an integer from `least` to 2^31 - 1. The product of two does not
  // overflow.
  bool Integer(absl::string_view key, Need need, int64_t least, int64_t* out);
  bool Number(absl::string_view key, Need need, double* out);  // Above 0.
  bool Flag(absl::string_view key, Need need, bool* out);
  // Reads one of `words`, which must be at least two.
  template <typename Value>
  bool Choice(absl::string_view key, Need need,
              const std::vector<std::pair<std::string, Value>>& words,
              Value* out) {
    std::vector<std::string> names;
    for (const auto& [word, value] : words) names.push_back(word);
    const int chosen = IndexOfWord(key, need, names);
    if (chosen >= 0) *out = words[chosen].second;
    return chosen >= 0;
  }

  // Adds errors for keys that were not asked for or are given twice.
  void Finish();

  // Adds an error at a key, or at the map itself if it lacks the key.
  void Error(absl::string_view key, absl::string_view what);
  // Adds an error that names what was found at `entry`, the value of `key`.
  void Expected(const YamlTree& entry, absl::string_view key,
                absl::string_view expected);
  // Returns "PATH.KEY", the path of a map within this one.
  std::string PathOf(absl::string_view key) const;
  const std::vector<YamlTree>& entries() const { return tree_.children; }
  bool has_errors() const { return !errors_.status().ok(); }  // In the file.

 private:
  template <typename Read>
  void ReadMap(const YamlTree& tree, absl::string_view key, Read read) {
    YamlMap map(tree, PathOf(key), &errors_);
    read(map);
    map.Finish();
  }
  int IndexOfWord(absl::string_view key, Need need,
                  const std::vector<std::string>& words);

  const YamlTree& tree_;
  const std::string path_;
  YamlErrors& errors_;
  const bool is_map_;
  std::vector<std::string> keys_;  // Keys asked for so far.
};

}  // namespace millrace

#endif  // MILLRACE_PLANNER_TEXT_YAML_MAP_H_
