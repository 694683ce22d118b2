// The values that job keys accept, and those that they have, in words.

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/units.h"
#include "planner/job/data_sources.h"
#include "planner/job/job_keys.h"
#include "planner/layout/recompute.h"
#include "planner/text/page.h"
#include "planner/text/yaml_tree.h"

namespace millrace {
namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

std::string DescribeRange(const NumberRange& range, double natural_maximum) {
  if (range.most < natural_maximum) {
    return absl::StrCat(" ", range.excludes_least ? "above " : "from ",
                        NumberToText(range.least),
                        range.excludes_most ? " to below " : " to ",
                        NumberToText(range.most));
  }
  return absl::StrCat(range.excludes_least ? " above " : " of at least ",
                      NumberToText(range.least));
}

// "fp32" or "none, linear or cosine".
std::string DescribeChoices(const char* choices) {
  std::vector<std::string> words = absl::StrSplit(choices, '|');
  if (words.size() == 1) return words.front();
  const std::string last = words.back();
  words.pop_back();
  return absl::StrCat(absl::StrJoin(words, ", "), " or ", last);
}

std::string IntegerRange(const JobKey& key) {
  // Bounds that only protect the integer types say nothing to a reader.
  return absl::StrCat("an integer", DescribeRange(key.range, 1 << 20));
}

std::string BytesText(int64_t bytes) {
  if (bytes > 0 && bytes % kGiB == 0) {
    return absl::StrCat(bytes / kGiB, " GiB");
  }
  if (bytes > 0 && bytes % kMiB == 0) {
    return absl::StrCat(bytes / kMiB, " MiB");
  }
  return absl::StrCat(bytes);
}

struct ExpectedText {
  const JobKey& key;
  std::string operator()(FixedChoice) const {
    return DescribeChoices(key.choices);
  }
  std::string operator()(bool*) const { return "true or false"; }
  std::string operator()(std::string*) const {
    if (key.choices == nullptr) return "text";
    if (!key.by_stage) return DescribeChoices(key.choices);
    return absl::StrCat(DescribeChoices(key.choices),
                        ", or ops joined as in norm+activation (",
                        RecomputeOpNames(),
                        "; output only with norm), or a list of these, one for "
                        "each stage");
  }
  std::string operator()(std::vector<std::string>*) const {
    return "a list of texts";
  }
  std::string operator()(std::vector<double>*) const {
    return "a list of numbers";
  }
  std::string operator()(std::vector<DataSourceSpec>*) const {
    return "a list of sections with path or files, format, kind, train_on, "
           "column and weight";
  }
  std::string operator()(std::map<std::string, DataSourceSpec>*) const {
    return "lists of texts, or sources, by names of letters, digits, '_' and "
           "'-'";
  }
  std::string operator()(double*) const {
    return absl::StrCat("a number", DescribeRange(key.range, kNoLimit));
  }
  std::string operator()(int32_t*) const { return IntegerRange(key); }
  std::string operator()(uint64_t*) const { return IntegerRange(key); }
  std::string operator()(int64_t*) const {
    return key.is_bytes ? "a size such as 20 MiB" : IntegerRange(key);
  }
  std::string operator()(std::optional<int32_t>*) const {
    return absl::StrCat("auto or ", IntegerRange(key));
  }
  std::string operator()(std::optional<int64_t>*) const {
    return "auto or a size such as 4 GiB";
  }
  std::string operator()(std::optional<double>*) const {
    return absl::StrCat("auto or a number", DescribeRange(key.range, kNoLimit));
  }
  template <typename Enum>
  requires std::is_enum_v<Enum> std::string operator()(Enum*) const {
    return DescribeChoices(key.choices);
  }
};

struct KeyValueText {
  const JobKey& key;
  std::string operator()(FixedChoice) const { return key.choices; }
  std::string operator()(const bool* value) const {
    return *value ? "true" : "false";
  }
  std::string operator()(const std::string* value) const {
    if (key.by_stage && absl::StrContains(*value, ',')) {
      return absl::StrCat("[", *value, "]");
    }
    return key.choices != nullptr ? *value : QuoteYaml(*value);
  }
  std::string operator()(const std::vector<std::string>* value) const {
    return absl::StrCat(
        "[",
        absl::StrJoin(*value, ", ",
                      [](std::string* out, const std::string& item) {
                        out->append(QuoteYaml(item));
                      }),
        "]");
  }
  std::string operator()(const std::vector<double>* value) const {
    return absl::StrCat("[",
                        absl::StrJoin(*value, ", ",
                                      [](std::string* out, double item) {
                                        out->append(NumberToText(item));
                                      }),
                        "]");
  }
  std::string operator()(const std::vector<DataSourceSpec>* value) const {
    return DataSourcesToYaml(*value);
  }
  std::string operator()(
      const std::map<std::string, DataSourceSpec>* value) const {
    return DataSetsToYaml(*value);
  }
  std::string operator()(const double* value) const {
    return NumberToText(*value);
  }
  template <typename Integer>
  requires std::is_integral_v<Integer> std::string operator()(
      const Integer* value) const {
    return key.is_bytes ? BytesText(*value) : absl::StrCat(*value);
  }
  template <typename Value>
  std::string operator()(const std::optional<Value>* value) const {
    return value->has_value() ? (*this)(&**value) : "auto";
  }
  template <typename Enum>
  requires std::is_enum_v<Enum> std::string operator()(
      const Enum* value) const {
    const std::vector<std::string> words = absl::StrSplit(key.choices, '|');
    return words[static_cast<size_t>(*value)];
  }
};

std::string DescribeDefault(const JobKey& key) {
  if (key.required) return "required";
  if (key.default_note != nullptr) return key.default_note;
  return absl::StrCat("default `", JobValueToYaml(key, JobSpec{}), "`");
}

}  // namespace

bool IsChoice(const JobKey& key, absl::string_view text) {
  if (key.choices == nullptr) return true;
  if (key.by_stage) return CheckRecomputeKey(text).ok();
  const std::vector<std::string> choices = absl::StrSplit(key.choices, '|');
  return std::find(choices.begin(), choices.end(), text) != choices.end();
}

std::string DescribeExpected(const JobKey& key) {
  JobSpec job;
  return std::visit(ExpectedText{key}, key.field(job));
}

std::string TooLargeText(const JobKey& key, absl::string_view value) {
  double number = 0;
  if (key.choices != nullptr || !absl::SimpleAtod(value, &number) ||
      number <= key.range.most) {
    return "";
  }
  return absl::StrCat("; the most is ", NumberToText(key.range.most),
                      key.maximum_reason == nullptr
                          ? ""
                          : absl::StrCat(", ", key.maximum_reason));
}

std::string JobValueToYaml(const JobKey& key, const JobSpec& job) {
  // The table's accessors give mutable pointers; a copy keeps `job` const.
  JobSpec copy = job;
  return std::visit(KeyValueText{key}, key.field(copy));
}

std::string JobKeysAsMarkdown() {
  std::string list;
  for (const JobKey& key : JobKeys()) {
    absl::StrAppend(
        &list,
        WrapLine(absl::StrCat("- `", key.path, "` (", DescribeExpected(key),
                              "; ", DescribeDefault(key), "): ", key.doc),
                 2),
        "\n");
  }
  return list;
}

}  // namespace millrace
