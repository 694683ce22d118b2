// A value of a template, with Python's meaning: what Jinja templates compute
// with. Values are immutable but for namespaces, which the run owns, so that no
// value can hold itself.

#ifndef MILLRACE_WORKER_CHAT_TEMPLATE_VALUE_H_
#define MILLRACE_WORKER_CHAT_TEMPLATE_VALUE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/json.h"

namespace millrace {

class TemplateValue;
using TemplateList = std::vector<TemplateValue>;
// In the order of insertion.
using TemplateDict = std::vector<std::pair<std::string, TemplateValue>>;

class TemplateValue {
 public:
  enum class Kind : uint8_t {
    kUndefined,  // Its text is the name that is not defined.
    kNone,
    kBool,
    kInteger,
    kFloat,
    kString,
    kList,
    kTuple,
    kDict,
    kNamespace,  // Its integer is an index of the run's namespaces.
    kFunction,   // Its text is the name, its integer a macro's index or -1.
  };

  TemplateValue() = default;  // Undefined, without a name.
  static TemplateValue Undefined(std::string name);
  static TemplateValue None() { return TemplateValue(Kind::kNone, int64_t{0}); }
  static TemplateValue Bool(bool value);
  static TemplateValue Integer(int64_t value);
  static TemplateValue Float(double value);
  static TemplateValue String(std::string value);
  static TemplateValue List(TemplateList items);
  static TemplateValue Tuple(TemplateList items);
  static TemplateValue Dict(TemplateDict items);
  static TemplateValue Namespace(int64_t idx);
  // `owner`: the value whose method it is; undefined for none.
  static TemplateValue Function(std::string name, int64_t macro_idx,
                                const TemplateValue& owner);
  static TemplateValue FromJson(const nlohmann::ordered_json& json);

  Kind kind() const { return kind_; }
  bool Is(Kind kind) const { return kind_ == kind; }
  bool IsUndefined() const { return kind_ == Kind::kUndefined; }
  bool IsString() const { return kind_ == Kind::kString; }
  bool IsSequence() const {  // A list or a tuple.
    return kind_ == Kind::kList || kind_ == Kind::kTuple;
  }
  bool IsDict() const { return kind_ == Kind::kDict; }
  bool IsInteger() const {  // Python's int: a bool is one.
    return kind_ == Kind::kInteger || kind_ == Kind::kBool;
  }
  bool IsNumber() const { return IsInteger() || kind_ == Kind::kFloat; }

  // Each for its kinds only.
  int64_t integer() const { return std::get<int64_t>(data_); }
  double number() const;  // An integer's too.
  const std::string& text() const;
  const TemplateList& items() const;
  const TemplateDict& dict() const;
  const TemplateValue* Find(absl::string_view key) const;  // Null: no such key.
  TemplateValue FunctionOwner() const;
  int64_t macro_idx() const { return macro_idx_; }

  // Containers within each other.
  int32_t depth() const { return depth_; }
  // Bytes and elements, counted as often as they can be reached: what walking
  // through the value costs.
  int64_t weight() const { return weight_; }

  bool IsTrue() const;
  // Python's name of the type.
  const char* TypeName() const;
  // Strings have their length in characters. Values without a length have 0.
  int64_t Length() const;
  // The elements that a loop sees: characters of a string, keys of a dict.
  // InvalidArgument for what cannot be iterated.
  absl::StatusOr<TemplateList> Elements() const;

 private:
  using Data = std::variant<
      std::monostate, int64_t, double, std::shared_ptr<const std::string>,
      std::shared_ptr<const TemplateList>, std::shared_ptr<const TemplateDict>>;
  TemplateValue(Kind kind, Data data) : kind_(kind), data_(std::move(data)) {}
  void Contain(const TemplateValue& item);

  Kind kind_ = Kind::kUndefined;
  Data data_;
  int32_t depth_ = 0;
  int64_t weight_ = 1;
  int64_t macro_idx_ = -1;
  std::shared_ptr<const TemplateValue> owner_;
};

bool TemplateEquals(const TemplateValue& a, const TemplateValue& b);
// Below, above or zero; InvalidArgument for types without an order.
absl::StatusOr<int> TemplateCompare(const TemplateValue& a,
                                    const TemplateValue& b);

// The text that `{{ value }}` prints: Python's str(). It is cut where it grows
// beyond `max_bytes`, which the caller refuses.
std::string TemplateText(const TemplateValue& value, size_t max_bytes);
// Python's repr().
std::string TemplateRepr(const TemplateValue& value, size_t max_bytes);

struct TojsonOptions {
  int64_t indent = -1;  // Below zero: one line.
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
// json.dumps() of Python. InvalidArgument for what JSON has no form of.
absl::StatusOr<std::string> TemplateJson(const TemplateValue& value,
                                         const TojsonOptions& options,
                                         size_t max_bytes);

// Characters of UTF-8 text, as offsets of bytes: one more than there are.
std::vector<size_t> CharacterOffsets(absl::string_view text);

}  // namespace millrace

#endif  // MILLRACE_WORKER_CHAT_TEMPLATE_VALUE_H_
