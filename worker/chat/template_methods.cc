#include <algorithm>
#include <array>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/chat/template_functions.h"
#include "worker/chat/template_text.h"

namespace millrace {
namespace {

constexpr std::array<absl::string_view, 26> kStringMethods = {
    "strip",     "lstrip",     "rstrip",   "split",        "rsplit",
    "upper",     "lower",      "title",    "capitalize",   "replace",
    "find",      "rfind",      "index",    "count",        "join",
    "isdigit",   "isalpha",    "isalnum",  "isspace",      "isupper",
    "islower",   "startswith", "endswith", "removeprefix", "removesuffix",
    "splitlines"};
constexpr std::array<absl::string_view, 4> kDictMethods = {"items", "keys",
                                                           "values", "get"};
constexpr std::array<absl::string_view, 2> kListMethods = {"index", "count"};

absl::StatusOr<std::string> TextArgument(const TemplateArguments& args,
                                         size_t idx, absl::string_view name,
                                         absl::string_view method) {
  const TemplateValue* value = args.Get(idx, name);
  if (value != nullptr && value->IsUndefined()) return UndefinedError(*value);
  if (value == nullptr || !value->IsString()) {
    return absl::InvalidArgumentError(
        absl::StrCat(method, "() expects a string, found ",
                     value == nullptr ? "nothing" : value->TypeName()));
  }
  return value->text();
}

absl::StatusOr<int64_t> CountArgument(const TemplateArguments& args, size_t idx,
                                      absl::string_view name,
                                      absl::string_view method) {
  const TemplateValue* value = args.Get(idx, name);
  if (value == nullptr) return -1;
  if (!value->IsInteger()) {
    return absl::InvalidArgumentError(absl::StrCat(
        method, "() expects an integer, found ", value->TypeName()));
  }
  return value->integer();
}

// Prefixes or suffixes: a string or a tuple of them.
absl::StatusOr<bool> StartsOrEnds(const std::string& text,
                                  const TemplateArguments& args,
                                  const std::string& method) {
  RETURN_IF_ERROR(args.Allow(method, {"prefix"}));
  const auto matches = [&](const std::string& part) {
    return method == "startswith" ? absl::StartsWith(text, part)
                                  : absl::EndsWith(text, part);
  };
  const TemplateValue* parts = args.Get(0, "prefix");
  if (parts != nullptr && parts->Is(TemplateValue::Kind::kTuple)) {
    return std::any_of(parts->items().begin(), parts->items().end(),
                       [&](const TemplateValue& part) {
                         return part.IsString() && matches(part.text());
                       });
  }
  ASSIGN_OR_RETURN(const std::string part,
                   TextArgument(args, 0, "prefix", method));
  return matches(part);
}

absl::StatusOr<TemplateValue> SplitMethod(const std::string& text,
                                          const TemplateArguments& args,
                                          const std::string& method) {
  RETURN_IF_ERROR(args.Allow(method, {"sep", "maxsplit"}));
  ASSIGN_OR_RETURN(const int64_t max_splits,
                   CountArgument(args, 1, "maxsplit", method));
  const TemplateValue* separator = args.Get(0, "sep");
  std::string by;
  if (separator != nullptr && !separator->Is(TemplateValue::Kind::kNone)) {
    ASSIGN_OR_RETURN(by, TextArgument(args, 0, "sep", method));
    if (by.empty()) return absl::InvalidArgumentError("empty separator");
  }
  TemplateList parts;
  for (std::string& part :
       SplitText(text, by, max_splits, /*from_end=*/method == "rsplit")) {
    parts.push_back(TemplateValue::String(std::move(part)));
  }
  return TemplateValue::List(std::move(parts));
}

absl::StatusOr<TemplateValue> FindMethod(const std::string& text,
                                         const TemplateArguments& args,
                                         const std::string& method) {
  RETURN_IF_ERROR(args.Allow(method, {"sub"}));
  ASSIGN_OR_RETURN(const std::string part,
                   TextArgument(args, 0, "sub", method));
  if (method == "count") {
    int64_t count = 0;
    if (part.empty()) {
      count = static_cast<int64_t>(CharacterOffsets(text).size());
    } else {
      for (size_t at = text.find(part); at != std::string::npos;
           at = text.find(part, at + part.size())) {
        ++count;
      }
    }
    return TemplateValue::Integer(count);
  }
  const size_t at = method == "rfind" ? text.rfind(part) : text.find(part);
  if (at != std::string::npos) {
    return TemplateValue::Integer(
        static_cast<int64_t>(CharacterOffsets(text.substr(0, at)).size()) - 1);
  }
  if (method == "index") {
    return absl::InvalidArgumentError("substring not found");
  }
  return TemplateValue::Integer(-1);
}

absl::StatusOr<TemplateValue> StringMethod(const std::string& text,
                                           const std::string& method,
                                           const TemplateArguments& args,
                                           TemplateMeter& meter) {
  if (method == "strip" || method == "lstrip" || method == "rstrip") {
    RETURN_IF_ERROR(args.Allow(method, {"chars"}));
    const TemplateValue* chars = args.Get(0, "chars");
    std::string set;
    if (chars != nullptr && !chars->Is(TemplateValue::Kind::kNone)) {
      ASSIGN_OR_RETURN(set, TextArgument(args, 0, "chars", method));
      if (set.empty()) return TemplateValue::String(text);
    }
    RETURN_IF_ERROR(meter.Charge(static_cast<int64_t>(set.size()) * 8));
    return TemplateValue::String(
        StripText(text, set, method != "rstrip", method != "lstrip"));
  }
  if (method == "split" || method == "rsplit") {
    return SplitMethod(text, args, method);
  }
  if (method == "startswith" || method == "endswith") {
    ASSIGN_OR_RETURN(const bool is, StartsOrEnds(text, args, method));
    return TemplateValue::Bool(is);
  }
  if (method == "find" || method == "rfind" || method == "index" ||
      method == "count") {
    return FindMethod(text, args, method);
  }
  if (method == "replace") {
    RETURN_IF_ERROR(args.Allow(method, {"old", "new", "count"}));
    ASSIGN_OR_RETURN(const std::string from,
                     TextArgument(args, 0, "old", method));
    ASSIGN_OR_RETURN(const std::string to,
                     TextArgument(args, 1, "new", method));
    ASSIGN_OR_RETURN(const int64_t count,
                     CountArgument(args, 2, "count", method));
    ASSIGN_OR_RETURN(std::string replaced,
                     ReplaceText(text, from, to, count, meter));
    return TemplateValue::String(std::move(replaced));
  }
  if (method == "join") {
    RETURN_IF_ERROR(args.Allow(method, {"iterable"}));
    const TemplateValue* parts = args.Get(0, "iterable");
    if (parts == nullptr) {
      return absl::InvalidArgumentError("join() expects an iterable");
    }
    ASSIGN_OR_RETURN(const TemplateList items, parts->Elements());
    std::string joined;
    for (size_t i = 0; i < items.size(); ++i) {
      if (!items[i].IsString()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "join() expects strings, found ", items[i].TypeName()));
      }
      RETURN_IF_ERROR(meter.Charge(
          static_cast<int64_t>(text.size() + items[i].text().size())));
      if (i > 0) joined += text;
      joined += items[i].text();
    }
    return TemplateValue::String(std::move(joined));
  }
  if (method == "removeprefix" || method == "removesuffix") {
    RETURN_IF_ERROR(args.Allow(method, {"prefix"}));
    ASSIGN_OR_RETURN(const std::string part,
                     TextArgument(args, 0, "prefix", method));
    if (method == "removeprefix" && absl::StartsWith(text, part)) {
      return TemplateValue::String(text.substr(part.size()));
    }
    if (method == "removesuffix" && absl::EndsWith(text, part)) {
      return TemplateValue::String(text.substr(0, text.size() - part.size()));
    }
    return TemplateValue::String(text);
  }
  RETURN_IF_ERROR(args.Allow(method, {}));
  if (method == "splitlines") {
    TemplateList lines;
    for (std::string& line : SplitLines(text)) {
      lines.push_back(TemplateValue::String(std::move(line)));
    }
    return TemplateValue::List(std::move(lines));
  }
  if (absl::StartsWith(method, "is")) {
    return TemplateValue::Bool(IsTextOf(text, method));
  }
  return TemplateValue::String(ChangeCase(text, method));
}

absl::StatusOr<TemplateValue> DictMethod(const TemplateValue& owner,
                                         const std::string& method,
                                         const TemplateArguments& args) {
  if (method == "get") {
    RETURN_IF_ERROR(args.Allow(method, {"key", "default"}));
    const TemplateValue* key = args.Get(0, "key");
    if (key == nullptr) {
      return absl::InvalidArgumentError("get() expects a key");
    }
    const TemplateValue* found =
        key->IsString() ? owner.Find(key->text()) : nullptr;
    if (found != nullptr) return *found;
    const TemplateValue* otherwise = args.Get(1, "default");
    return otherwise == nullptr ? TemplateValue::None() : *otherwise;
  }
  RETURN_IF_ERROR(args.Allow(method, {}));
  TemplateList items;
  for (const auto& [key, value] : owner.dict()) {
    TemplateValue name = TemplateValue::String(key);
    items.push_back(method == "keys"     ? name
                    : method == "values" ? value
                                         : TemplateValue::Tuple({name, value}));
  }
  return TemplateValue::List(std::move(items));
}

absl::StatusOr<TemplateValue> ListMethod(const TemplateValue& owner,
                                         const std::string& method,
                                         const TemplateArguments& args) {
  RETURN_IF_ERROR(args.Allow(method, {"value"}));
  const TemplateValue* value = args.Get(0, "value");
  if (value == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(method, "() expects a value"));
  }
  int64_t count = 0;
  for (size_t i = 0; i < owner.items().size(); ++i) {
    if (!TemplateEquals(owner.items()[i], *value)) continue;
    if (method == "index") {
      return TemplateValue::Integer(static_cast<int64_t>(i));
    }
    ++count;
  }
  if (method == "index") {
    return absl::InvalidArgumentError("the value is not in the list");
  }
  return TemplateValue::Integer(count);
}

template <typename Names>
bool Has(const Names& names, absl::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

bool HasTemplateMethod(const TemplateValue& owner, absl::string_view name) {
  if (owner.IsString()) return Has(kStringMethods, name);
  if (owner.IsDict()) return Has(kDictMethods, name);
  return owner.IsSequence() && Has(kListMethods, name);
}

absl::StatusOr<TemplateValue> CallTemplateMethod(const TemplateValue& owner,
                                                 const std::string& name,
                                                 const TemplateArguments& args,
                                                 TemplateMeter& meter) {
  RETURN_IF_ERROR(meter.Charge(owner.weight()));
  if (owner.IsString()) return StringMethod(owner.text(), name, args, meter);
  if (owner.IsDict()) return DictMethod(owner, name, args);
  return ListMethod(owner, name, args);
}

}  // namespace millrace
