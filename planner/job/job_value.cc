#include "planner/job/job_value.h"

#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/units.h"

namespace millrace {
namespace {

// "20 MiB", "1.5GiB", "20 MB" or "1048576".
bool ParseBytes(absl::string_view text, int64_t* bytes) {
  static constexpr struct {
    const char* suffix;
    int64_t factor;
  } kUnits[] = {{"KiB", kKiB},
                {"MiB", kMiB},
                {"GiB", kGiB},
                {"TiB", kGiB * 1024},
                {"kB", 1000},
                {"KB", 1000},
                {"MB", 1'000'000},
                {"GB", 1'000'000'000},
                {"TB", 1'000'000'000'000},
                {"B", 1}};
  if (absl::SimpleAtoi(text, bytes)) return true;
  for (const auto& unit : kUnits) {
    absl::string_view number = text;
    if (!absl::ConsumeSuffix(&number, unit.suffix)) continue;
    double value = 0;
    if (!absl::SimpleAtod(absl::StripAsciiWhitespace(number), &value)) {
      return false;
    }
    value *= static_cast<double>(unit.factor);
    if (!(std::abs(value) < 9e15)) return false;
    *bytes = std::llround(value);
    return true;
  }
  return false;
}

bool IsInRange(const JobKey& key, double value) {
  const bool above =
      key.open_minimum ? value > key.minimum : value >= key.minimum;
  const bool below =
      key.open_maximum ? value < key.maximum : value <= key.maximum;
  return above && below;
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
  bool operator()(LearningRateDecay* value) const {
    static const std::map<std::string, LearningRateDecay> kDecays = {
        {"none", LearningRateDecay::kNone},
        {"linear", LearningRateDecay::kLinear},
        {"cosine", LearningRateDecay::kCosine}};
    const auto found = kDecays.find(tree.scalar);
    if (!IsScalar() || found == kDecays.end()) return false;
    *value = found->second;
    return true;
  }
  bool operator()(FeedForward* value) const {
    for (const FeedForward kind : {FeedForward::kSwiglu, FeedForward::kGelu,
                                   FeedForward::kSquaredRelu}) {
      if (!IsScalar() || tree.scalar != FeedForwardName(kind)) continue;
      *value = kind;
      return true;
    }
    return false;
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
