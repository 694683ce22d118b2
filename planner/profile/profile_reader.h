// Reads the records of a profile file, whose keys
// planner/profile/profile_fields.h lists, and says of each error in which line
// and key it is.

#ifndef MILLRACE_PLANNER_PROFILE_PROFILE_READER_H_
#define MILLRACE_PLANNER_PROFILE_PROFILE_READER_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "planner/profile/profile_fields.h"
#include "planner/text/nearest_word.h"
#include "planner/text/yaml_tree.h"

namespace millrace {

// Reads one map; every key but the optional ones is required, none may be
// unknown or given twice.
class ProfileReader {
 public:
  ProfileReader(const YamlTree& tree, const std::string& file_name,
                std::string path, std::vector<std::string>* errors)
      : tree_(tree),
        file_name_(file_name),
        path_(std::move(path)),
        errors_(errors) {}

  template <typename Record>
  void Read(Record& record) {
    if (tree_.kind != YamlTree::Kind::kMap) {
      Error(tree_, "",
            absl::StrCat("expected a map, found ", DescribeYaml(tree_)));
      return;
    }
    needs_tables_ = Given("device") == nullptr || Given("network") == nullptr;
    VisitFields(*this, record);
    std::set<std::string> seen;
    for (const YamlTree& entry : tree_.children) {
      if (!seen.insert(entry.key).second) {
        Error(entry, entry.key, "given twice; remove one");
      }
      if (std::find(keys_.begin(), keys_.end(), entry.key) != keys_.end()) {
        continue;
      }
      const auto nearest = NearestWord(entry.key, keys_);
      Error(entry, entry.key,
            nearest.has_value()
                ? absl::StrCat("unknown key; did you mean '", *nearest, "'?")
                : absl::StrCat("unknown key; known keys here: ",
                               absl::StrJoin(keys_, ", ")));
    }
  }

  void operator()(const char* key, std::string& value) {
    if (const YamlTree* entry = FindScalar(key, "text")) value = entry->scalar;
  }
  void operator()(const char* key, double& value) { Number(key, &value); }
  void operator()(const char* key, int32_t& value) { Integer(key, &value); }
  void operator()(const char* key, int64_t& value) { Integer(key, &value); }
  void FromZero(const char* key, int32_t& value) { Integer(key, &value, 0); }
  void FromZero(const char* key, int64_t& value) {
    Integer(key, &value, int64_t{0});
  }
  // May be left out: older files do not have it.
  void Later(const char* key, double& value) {
    if (Given(key) != nullptr) {
      Number(key, &value);
    } else {
      keys_.emplace_back(key);
    }
  }
  // "threads=256 stages=2".
  void Settings(const char* key, std::string& value) {
    constexpr absl::string_view kExpected = "words NAME=INTEGER";
    const YamlTree* entry = FindScalar(key, kExpected);
    if (entry == nullptr) return;
    value = entry->scalar;
    for (const absl::string_view word : absl::StrSplit(value, ' ')) {
      const std::pair<absl::string_view, absl::string_view> parts =
          absl::StrSplit(word, absl::MaxSplits('=', 1));
      int64_t number = 0;
      if (parts.first.empty() || !absl::SimpleAtoi(parts.second, &number)) {
        Expected(*entry, key, kExpected);
        return;
      }
    }
  }
  void operator()(const char* key, bool& value) {
    const YamlTree* entry = FindScalar(key, "true or false");
    if (entry == nullptr) return;
    if (entry->scalar != "true" && entry->scalar != "false") {
      Expected(*entry, key, "true or false");
    }
    value = entry->scalar == "true";
  }
  void operator()(const char* key, OpKind& value) {
    const YamlTree* entry = FindScalar(key, "an op kind");
    if (entry == nullptr) return;
    std::vector<std::string> names;
    for (int i = 0; i < kNumOpKinds; ++i) {
      names.emplace_back(OpKindName(static_cast<OpKind>(i)));
      if (names.back() != entry->scalar) continue;
      value = static_cast<OpKind>(i);
      return;
    }
    const auto nearest = NearestWord(entry->scalar, names);
    Error(*entry, key,
          absl::StrCat(
              "unknown op kind '", entry->scalar, "'; ",
              nearest.has_value()
                  ? absl::StrCat("did you mean '", *nearest, "'?")
                  : absl::StrCat("known: ", absl::StrJoin(names, ", "))));
  }
  // May be left out: profiles were of fp32 before they said so.
  void operator()(const char* key, Precision& value) {
    keys_.emplace_back(key);
    const YamlTree* given = Given(key);
    if (given == nullptr) return;
    for (const Precision precision :
         {Precision::kFloat32, Precision::kBfloat16}) {
      if (given->kind == YamlTree::Kind::kScalar &&
          given->scalar == PrecisionName(precision)) {
        value = precision;
        return;
      }
    }
    Expected(*given, key, "fp32 or bf16");
  }
  void operator()(const char* key, ProfileProvenance& value) {
    if (const YamlTree* entry = Find(key, "a section")) {
      Section(*entry, key).Read(value);
    }
  }
  template <OptionalSection Part>
  void operator()(const char* key, Part& value) {
    keys_.emplace_back(key);
    const YamlTree* entry = Given(key);
    if (entry != nullptr) Section(*entry, key).Read(value);
  }
  void operator()(const char* key, std::vector<double>& values) {
    const YamlTree* entry = FindTable(key);
    if (entry == nullptr) return;
    for (const YamlTree& item : entry->children) {
      values.push_back(0);
      if (item.kind != YamlTree::Kind::kScalar ||
          !ParseNumber(item.scalar, RangeOf(key), &values.back())) {
        Expected(item, key, absl::StrCat("numbers, ", Describe(RangeOf(key))));
      }
    }
  }
  template <typename Row>
  void operator()(const char* key, std::vector<Row>& rows) {
    const YamlTree* entry =
        OptionalRow<Row> ? FindGivenList(key) : FindTable(key);
    if (entry == nullptr) return;
    for (const YamlTree& item : entry->children) {
      rows.emplace_back();
      Section(item, absl::StrCat(key, "[", rows.size() - 1, "]"))
          .Read(rows.back());
    }
  }

 private:
  ProfileReader Section(const YamlTree& tree, const std::string& key) const {
    return ProfileReader(tree, file_name_, absl::StrCat(path_, key, "."),
                         errors_);
  }

  const YamlTree* Given(absl::string_view key) const {
    const auto given =
        std::find_if(tree_.children.begin(), tree_.children.end(),
                     [&](const YamlTree& entry) { return entry.key == key; });
    return given == tree_.children.end() ? nullptr : &*given;
  }
  const YamlTree* Find(const char* key, absl::string_view expected) {
    keys_.emplace_back(key);
    const YamlTree* entry = Given(key);
    if (entry == nullptr) {
      Error(tree_, key, absl::StrCat("missing; expected ", expected));
    }
    return entry;
  }
  const YamlTree* FindScalar(const char* key, absl::string_view expected) {
    const YamlTree* entry = Find(key, expected);
    if (entry == nullptr) return nullptr;
    if (entry->kind == YamlTree::Kind::kScalar) return entry;
    Expected(*entry, key, expected);
    return nullptr;
  }
  const YamlTree* FindGivenList(const char* key) {
    keys_.emplace_back(key);
    const YamlTree* entry = Given(key);
    if (entry == nullptr || entry->kind == YamlTree::Kind::kList) return entry;
    Expected(*entry, key, "a list");
    return nullptr;
  }
  const YamlTree* FindTable(const char* key) {
    if (needs_tables_ && Given(key) == nullptr) {
      Error(tree_, key,
            "missing, as are device and network, which would price what no "
            "table has; measure the tables with millrace profile JOB");
    }
    return FindGivenList(key);
  }

  // Every machine's figures lie in it, and sums and quotients of numbers in it
  // stay finite.
  struct Range {
    double least;  // But for 0 itself.
    double most;
  };
  static Range RangeOf(absl::string_view key) {
    const bool is_rate = absl::EndsWith(key, "_per_s");
    const bool is_time =
        key == "seconds" || (absl::EndsWith(key, "_s") && !is_rate);
    if (is_time) return {1e-12, 1e6};
    if (is_rate) return {1, 1e18};
    return {1e-15, 1e15};
  }
  static std::string Describe(Range range) {
    return absl::StrCat("0 or from ", range.least, " to ", range.most);
  }
  static bool ParseNumber(const std::string& text, Range range, double* value) {
    return absl::SimpleAtod(text, value) &&
           (*value == 0 || (*value >= range.least && *value <= range.most));
  }
  void Number(const char* key, double* value) {
    const std::string expected =
        absl::StrCat("a number, ", Describe(RangeOf(key)));
    const YamlTree* entry = FindScalar(key, expected);
    if (entry != nullptr && !ParseNumber(entry->scalar, RangeOf(key), value)) {
      Expected(*entry, key, expected);
    }
  }
  template <typename Value>
  void Integer(const char* key, Value* value, Value least = 1) {
    const std::string expected = absl::StrCat("an integer of at least ", least);
    const YamlTree* entry = FindScalar(key, expected);
    if (entry != nullptr &&
        (!absl::SimpleAtoi(entry->scalar, value) || *value < least)) {
      Expected(*entry, key, expected);
    }
  }

  void Expected(const YamlTree& tree, absl::string_view key,
                absl::string_view expected) {
    Error(tree, key,
          absl::StrCat("expected ", expected, ", found ", DescribeYaml(tree)));
  }
  void Error(const YamlTree& tree, absl::string_view key,
             absl::string_view what) {
    errors_->push_back(absl::StrCat(file_name_, ":", tree.line, ": ", path_,
                                    key, key.empty() ? "" : ": ", what));
  }

  const YamlTree& tree_;
  const std::string& file_name_;
  const std::string path_;
  std::vector<std::string>* const errors_;
  std::vector<std::string> keys_;  // Asked for so far.
  bool needs_tables_ = true;
};

}  // namespace millrace

#endif  // MILLRACE_PLANNER_PROFILE_PROFILE_READER_H_
