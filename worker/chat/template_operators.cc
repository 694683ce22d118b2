#include <algorithm>
#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/chat/template_functions.h"

namespace millrace {
namespace {

using Kind = TemplateValue::Kind;

constexpr int32_t kMaxValueDepth = 100;

absl::Status NoOperator(absl::string_view op, const TemplateValue& a,
                        const TemplateValue& b) {
  if (a.IsUndefined()) return UndefinedError(a);
  if (b.IsUndefined()) return UndefinedError(b);
  return absl::InvalidArgumentError(
      absl::StrCat("unsupported operand types for ", op, ": '", a.TypeName(),
                   "' and '", b.TypeName(), "'"));
}

absl::Status TooLarge() {
  return absl::InvalidArgumentError("a number grows beyond 64 bits");
}

absl::StatusOr<TemplateValue> IntegerOperator(absl::string_view op, int64_t a,
                                              int64_t b) {
  int64_t result = 0;
  bool overflows = false;
  if (op == "+") {
    overflows = __builtin_add_overflow(a, b, &result);
  } else if (op == "-") {
    overflows = __builtin_sub_overflow(a, b, &result);
  } else if (op == "*") {
    overflows = __builtin_mul_overflow(a, b, &result);
  } else if (op == "**") {
    if (b < 0) {
      return TemplateValue::Float(
          std::pow(static_cast<double>(a), static_cast<double>(b)));
    }
    result = 1;
    if (b > 64 && a != 0 && a != 1 && a != -1) return TooLarge();
    const int64_t rounds = b > 64 ? 64 + b % 2 : b;
    for (int64_t i = 0; i < rounds && !overflows; ++i) {
      overflows = __builtin_mul_overflow(result, a, &result);
    }
  } else {
    if (b == 0) {
      return absl::InvalidArgumentError("division or modulo by zero");
    }
    if (op == "/") {
      return TemplateValue::Float(static_cast<double>(a) /
                                  static_cast<double>(b));
    }
    if (b == -1) {  // Where the smallest number has no quotient.
      if (op == "%") return TemplateValue::Integer(0);
      overflows = __builtin_sub_overflow(int64_t{0}, a, &result);
    } else {
      const int64_t quotient = a / b - ((a % b != 0) && ((a < 0) != (b < 0)));
      result = op == "//" ? quotient : a - quotient * b;
    }
  }
  if (overflows) return TooLarge();
  return TemplateValue::Integer(result);
}

absl::StatusOr<TemplateValue> FloatOperator(absl::string_view op, double a,
                                            double b) {
  if (op == "+") return TemplateValue::Float(a + b);
  if (op == "-") return TemplateValue::Float(a - b);
  if (op == "*") return TemplateValue::Float(a * b);
  if (op == "**") return TemplateValue::Float(std::pow(a, b));
  if (b == 0) return absl::InvalidArgumentError("division or modulo by zero");
  if (op == "/") return TemplateValue::Float(a / b);
  const double quotient = std::floor(a / b);
  if (op == "//") return TemplateValue::Float(quotient);
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
  return TemplateValue::Float(rest);
}

absl::StatusOr<TemplateValue> Repeat(const TemplateValue& value, int64_t count,
                                     TemplateMeter& meter) {
  count = std::max<int64_t>(0, count);
  int64_t weight = 0;
  if (__builtin_mul_overflow(value.weight(), count, &weight)) {
    weight = INT64_MAX;
  }
  RETURN_IF_ERROR(meter.Charge(weight));
  if (value.IsString()) {
    std::string text;
    for (int64_t i = 0; i < count; ++i) text += value.text();
    return TemplateValue::String(std::move(text));
  }
  TemplateList items;
  for (int64_t i = 0; i < count; ++i) {
    items.insert(items.end(), value.items().begin(), value.items().end());
  }
  return value.Is(Kind::kList) ? TemplateValue::List(std::move(items))
                               : TemplateValue::Tuple(std::move(items));
}

}  // namespace

absl::Status TemplateMeter::Charge(int64_t cost) {
  if (cost <= budget_) {
    budget_ -= cost;
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(
      "the template takes too many steps or makes too much text");
}

absl::Status TemplateMeter::ChargeFor(const TemplateValue& value) {
  if (value.depth() > kMaxValueDepth) {
    return absl::ResourceExhaustedError(
        "the template nests lists or dicts too deep");
  }
  if (value.weight() > max_weight_) {
    return absl::ResourceExhaustedError("the template makes too large a value");
  }
  return Charge(value.weight());
}

const TemplateValue* TemplateArguments::Get(size_t idx,
                                            absl::string_view name) const {
  if (idx < positional.size()) return &positional[idx];
  for (const auto& [key, value] : named) {
    if (key == name) return &value;
  }
  return nullptr;
}

absl::Status TemplateArguments::Allow(
    absl::string_view function,
    std::initializer_list<absl::string_view> names) const {
  if (positional.size() > names.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(function, "() takes at most ", names.size(),
                     " arguments, found ", positional.size()));
  }
  for (const auto& [key, value] : named) {
    if (std::find(names.begin(), names.end(), key) == names.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat(function, "() has no argument '", key, "'"));
    }
  }
  return absl::OkStatus();
}

absl::Status UndefinedError(const TemplateValue& value) {
  return absl::InvalidArgumentError(absl::StrCat(
      "'", value.text().empty() ? "a value" : value.text(), "' is undefined"));
}

absl::StatusOr<TemplateValue> TemplateBinary(const std::string& op,
                                             const TemplateValue& a,
                                             const TemplateValue& b,
                                             TemplateMeter& meter) {
  if (op == "~") {
    std::string text = TemplateText(a, meter.max_bytes());
    text += TemplateText(b, meter.max_bytes());
    return TemplateValue::String(std::move(text));
  }
  if (a.IsInteger() && b.IsInteger()) {
    return IntegerOperator(op, a.integer(), b.integer());
  }
  if (a.IsNumber() && b.IsNumber()) {
    return FloatOperator(op, a.number(), b.number());
  }
  if (op == "+") {
    if (a.IsString() && b.IsString()) {
      return TemplateValue::String(absl::StrCat(a.text(), b.text()));
    }
    if (a.IsSequence() && a.kind() == b.kind()) {
      TemplateList items = a.items();
      items.insert(items.end(), b.items().begin(), b.items().end());
      return a.Is(Kind::kList) ? TemplateValue::List(std::move(items))
                               : TemplateValue::Tuple(std::move(items));
    }
  }
  if (op == "*") {
    if ((a.IsString() || a.IsSequence()) && b.IsInteger()) {
      return Repeat(a, b.integer(), meter);
    }
    if ((b.IsString() || b.IsSequence()) && a.IsInteger()) {
      return Repeat(b, a.integer(), meter);
    }
  }
  return NoOperator(op, a, b);
}

absl::StatusOr<bool> TemplateRelation(absl::string_view op,
                                      const TemplateValue& a,
                                      const TemplateValue& b,
                                      TemplateMeter& meter) {
  RETURN_IF_ERROR(meter.Charge(std::min(a.weight(), b.weight())));
  if (op == "==") return TemplateEquals(a, b);
  if (op == "!=") return !TemplateEquals(a, b);
  if (op == "in") {
    RETURN_IF_ERROR(meter.Charge(b.weight()));
    if (b.IsString()) {
      if (!a.IsString()) return NoOperator(op, a, b);
      return absl::StrContains(b.text(), a.text());
    }
    if (b.IsDict()) return a.IsString() && b.Find(a.text()) != nullptr;
    if (b.IsUndefined()) return false;
    ASSIGN_OR_RETURN(const TemplateList elements, b.Elements());
    return std::any_of(
        elements.begin(), elements.end(),
        [&](const TemplateValue& item) { return TemplateEquals(a, item); });
  }
  if (a.IsUndefined()) return UndefinedError(a);
  if (b.IsUndefined()) return UndefinedError(b);
  ASSIGN_OR_RETURN(const int order, TemplateCompare(a, b));
  if (op == "<") return order < 0;
  if (op == "<=") return order <= 0;
  if (op == ">") return order > 0;
  return order >= 0;
}

absl::StatusOr<TemplateValue> GetTemplateItem(const TemplateValue& value,
                                              const TemplateValue& key) {
  if (value.IsUndefined()) return UndefinedError(value);
  const auto missing = [&] {
    return TemplateValue::Undefined(absl::StrCat(
        value.TypeName(), " object has no element ", TemplateRepr(key, 100)));
  };
  if (value.IsDict()) {
    if (!key.IsString()) return missing();
    const TemplateValue* found = value.Find(key.text());
    if (found != nullptr) return *found;
    return TemplateValue::Undefined(key.text());
  }
  if (!key.IsInteger()) {
    if (key.IsString()) {
      // Jinja looks for an attribute where there is no such item.
      if (HasTemplateMethod(value, key.text())) {
        return TemplateValue::Function(key.text(), -1, value);
      }
      return TemplateValue::Undefined(key.text());
    }
    return missing();
  }
  if (value.IsSequence()) {
    const auto size = static_cast<int64_t>(value.items().size());
    const int64_t idx =
        key.integer() < 0 ? key.integer() + size : key.integer();
    if (idx < 0 || idx >= size) return missing();
    return value.items()[static_cast<size_t>(idx)];
  }
  if (value.IsString()) {
    const std::vector<size_t> offsets = CharacterOffsets(value.text());
    const auto size = static_cast<int64_t>(offsets.size()) - 1;
    const int64_t idx =
        key.integer() < 0 ? key.integer() + size : key.integer();
    if (idx < 0 || idx >= size) return missing();
    const size_t at = offsets[static_cast<size_t>(idx)];
    return TemplateValue::String(
        value.text().substr(at, offsets[static_cast<size_t>(idx) + 1] - at));
  }
  return missing();
}

absl::StatusOr<TemplateValue> GetTemplateAttribute(const TemplateValue& value,
                                                   const std::string& name) {
  if (value.IsUndefined()) return UndefinedError(value);
  if (HasTemplateMethod(value, name)) {
    return TemplateValue::Function(name, -1, value);
  }
  if (value.IsDict()) {
    return GetTemplateItem(value, TemplateValue::String(name));
  }
  return TemplateValue::Undefined(name);
}

absl::StatusOr<TemplateValue> SliceTemplateValue(const TemplateValue& value,
                                                 const TemplateValue* begin,
                                                 const TemplateValue* end,
                                                 const TemplateValue* step) {
  if (value.IsUndefined()) return UndefinedError(value);
  if (!value.IsString() && !value.IsSequence()) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", value.TypeName(), "' object cannot be sliced"));
  }
  for (const TemplateValue* part : {begin, end, step}) {
    if (part != nullptr && !part->IsInteger() && !part->Is(Kind::kNone)) {
      return absl::InvalidArgumentError(
          "slice indices must be integers or none");
    }
  }
  const auto given = [](const TemplateValue* part) {
    return part != nullptr && !part->Is(Kind::kNone);
  };
  std::vector<size_t> offsets;
  if (value.IsString()) offsets = CharacterOffsets(value.text());
  const auto size = static_cast<int64_t>(
      value.IsString() ? offsets.size() - 1 : value.items().size());
  const int64_t stride = given(step) ? step->integer() : 1;
  if (stride == 0) {
    return absl::InvalidArgumentError("slice step cannot be zero");
  }
  const int64_t low = stride > 0 ? 0 : -1;
  const int64_t high = stride > 0 ? size : size - 1;
  const auto bound = [&](const TemplateValue* part, int64_t otherwise) {
    if (!given(part)) return otherwise;
    int64_t at = part->integer();
    if (at < 0) at = at < -size ? low : at + size;
    return std::clamp(at, low, high);
  };
  const int64_t first = bound(begin, stride > 0 ? low : high);
  const int64_t last = bound(end, stride > 0 ? high : low);
  std::string text;
  TemplateList items;
  for (int64_t i = first; stride > 0 ? i < last : i > last;) {
    const auto at = static_cast<size_t>(i);
    if (value.IsString()) {
      text.append(value.text(), offsets[at], offsets[at + 1] - offsets[at]);
    } else {
      items.push_back(value.items()[at]);
    }
    if (__builtin_add_overflow(i, stride, &i)) break;
  }
  if (value.IsString()) return TemplateValue::String(std::move(text));
  return value.Is(Kind::kList) ? TemplateValue::List(std::move(items))
                               : TemplateValue::Tuple(std::move(items));
}

}  // namespace millrace
