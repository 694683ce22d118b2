// Reads YAML text as a plain tree with line numbers. Only this file uses the
// YAML library; all YAML files are read through the tree.

#ifndef MILLRACE_PLANNER_TEXT_YAML_TREE_H_
#define MILLRACE_PLANNER_TEXT_YAML_TREE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace millrace {

struct YamlTree {
  enum class Kind { kNull, kScalar, kList, kMap };
  Kind kind = Kind::kNull;
  int line = 1;                    // From 1.
  std::string key;                 // If an entry of a map; may repeat.
  std::string scalar;              // As written, without quotes.
  bool is_quoted = false;          // Whether the scalar stood in quotes.
  std::vector<YamlTree> children;  // Items of a list, entries of a map.
};

// Describes a value for messages: "a list", "a map", "nothing" or "'text'".
std::string DescribeYaml(const YamlTree& tree);

// Returns InvalidArgument that starts with "file_name:line: " for text that is
// not UTF-8 or not YAML, holds more than one document, uses a list or map as a
// key, or nests deeper than 32 levels. Empty text gives kNull.
absl::StatusOr<YamlTree> ParseYaml(absl::string_view yaml,
                                   const std::string& file_name);

// Returns the text as a double-quoted YAML scalar.
std::string QuoteYaml(absl::string_view text);

// Returns the shortest decimal text that reads back to the same value.
std::string NumberToText(double value);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_TEXT_YAML_TREE_H_
