// Sets the keys of a job from YAML.

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "planner/job/data_sources.h"
#include "planner/job/job_keys.h"
#include "planner/text/quantity.h"
#include "planner/text/yaml_tree.h"

namespace millrace {
namespace {

// "20 MiB", "1.5GiB", "20 MB" or "1048576".
bool ParseBytes(absl::string_view text, int64_t* bytes) {
  if (absl::SimpleAtoi(text, bytes)) return true;
  const absl::StatusOr<Quantity> size = ParseQuantity(text, Dimension::kBytes);
  if (!size.ok() || size->value >= 9e15) return false;
  *bytes = std::llround(size->value);
  return true;
}

bool IsInRange(const JobKey& key, double value) {
  const auto& [least, most, excludes_least, excludes_most] = key.range;
  return (excludes_least ? value > least : value >= least) &&
         (excludes_most ? value < most : value <= most);
}

// Sets one field from one node; false if the node is not what the key expects.
struct FieldReader {
  const JobKey& key;
  const YamlTree& tree;

  bool IsScalar() const { return tree.kind == YamlTree::Kind::kScalar; }

  template <typename Integer>
  bool ReadInteger(Integer* value) const {
    return IsScalar() && absl::SimpleAtoi(tree.scalar, value) &&
           IsInRange(key, static_cast<double>(*value));
  }

  bool operator()(FixedChoice) const {
    return IsScalar() && tree.scalar == key.choices;
  }
  bool operator()(bool* value) const {
    *value = tree.scalar == "true";
    return IsScalar() && (*value || tree.scalar == "false");
  }
  bool operator()(std::string* value) const {
    std::vector<std::string> stages;
    if (!IsScalar() && !(key.by_stage && (*this)(&stages))) return false;
    *value = IsScalar() ? tree.scalar : absl::StrJoin(stages, ", ");
    return IsChoice(key, *value);
  }
  bool operator()(std::vector<std::string>* value) const {
    if (tree.kind != YamlTree::Kind::kList) return false;
    value->clear();
    for (const YamlTree& item : tree.children) {
      if (item.kind != YamlTree::Kind::kScalar) return false;
      value->push_back(item.scalar);
    }
    return true;
  }
  bool operator()(std::vector<double>* value) const {
    if (IsScalar()) {  // As JobValueToYaml() writes it, "[1, 2.5]".
      absl::string_view text = tree.scalar;
      if (!absl::ConsumePrefix(&text, "[") ||
          !absl::ConsumeSuffix(&text, "]")) {
        return false;
      }
      YamlTree list{.kind = YamlTree::Kind::kList};
      for (const absl::string_view item :
           absl::StrSplit(text, ',', absl::SkipWhitespace())) {
        list.children.push_back(
            {.kind = YamlTree::Kind::kScalar,
             .scalar = std::string(absl::StripAsciiWhitespace(item))});
      }
      return FieldReader{key, list}(value);
    }
    if (tree.kind != YamlTree::Kind::kList) return false;
    value->clear();
    for (const YamlTree& item : tree.children) {
      if (!FieldReader{key, item}(&value->emplace_back())) return false;
    }
    return true;
  }
  bool operator()(std::vector<DataSourceSpec>* value) const {
    std::vector<SourceProblem> problems;
    *value = ReadDataSources(tree, &problems);
    return problems.empty();
  }
  bool operator()(std::map<std::string, DataSourceSpec>* value) const {
    std::vector<SourceProblem> problems;
    *value = ReadDataSets(tree, &problems);
    return problems.empty();
  }
  bool operator()(double* value) const {
    return IsScalar() && absl::SimpleAtod(tree.scalar, value) &&
           std::isfinite(*value) && IsInRange(key, *value);
  }
  bool operator()(int32_t* value) const { return ReadInteger(value); }
  bool operator()(uint64_t* value) const { return ReadInteger(value); }
  bool operator()(int64_t* value) const {
    if (!key.is_bytes) return ReadInteger(value);
    return IsScalar() && ParseBytes(tree.scalar, value) &&
           IsInRange(key, static_cast<double>(*value));
  }
  template <typename Value>
  bool operator()(std::optional<Value>* value) const {
    value->reset();
    if (IsScalar() && tree.scalar == "auto") return true;
    Value present = 0;
    if (!(*this)(&present)) return false;
    *value = present;
    return true;
  }
  template <typename Enum>
  requires std::is_enum_v<Enum>
  bool operator()(Enum* value) const {
    if (!IsScalar() || !IsChoice(key, tree.scalar)) return false;
    const std::vector<std::string> words = absl::StrSplit(key.choices, '|');
    *value = static_cast<Enum>(std::ranges::find(words, tree.scalar) -
                               words.begin());
    return true;
  }
};

}  // namespace

bool SetFromTree(const JobKey& key, const YamlTree& tree, JobSpec* job) {
  JobSpec parsed = *job;
  if (!std::visit(FieldReader{key, tree}, key.field(parsed))) return false;
  *job = std::move(parsed);
  return true;
}

}  // namespace millrace
