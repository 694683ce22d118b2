#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "worker/chat/template_functions.h"
#include "worker/chat/template_text.h"

namespace millrace {
namespace {

using Kind = TemplateValue::Kind;
using Value = TemplateValue;
using FilterResult = absl::StatusOr<Value>;

// The input of a filter: the value, the filter's arguments, and its budget.
struct FilterCall {
  const std::string& name;
  const Value& value;
  const TemplateArguments& args;
  TemplateMeter& meter;

  std::string Text() const { return TemplateText(value, meter.max_bytes()); }
  bool Flag(size_t idx, absl::string_view key, bool otherwise) const {
    const Value* flag = args.Get(idx, key);
    return flag == nullptr ? otherwise : flag->IsTrue();
  }
  std::string TextOf(size_t idx, absl::string_view key,
                     const std::string& otherwise) const {
    const Value* text = args.Get(idx, key);
    return text == nullptr || text->Is(Kind::kNone)
               ? otherwise
               : TemplateText(*text, meter.max_bytes());
  }
  absl::StatusOr<int64_t> Number(size_t idx, absl::string_view key,
                                 int64_t otherwise) const {
    const Value* number = args.Get(idx, key);
    if (number == nullptr || number->Is(Kind::kNone)) return otherwise;
    if (number->IsInteger()) return number->integer();
    return absl::InvalidArgumentError(absl::StrCat(
        name, ": ", key, " is a ", number->TypeName(), ", not an integer"));
  }
};

// `a.b.0` of a value, as filters that take an attribute look it up.
FilterResult AtPath(const Value& value, const Value& path) {
  if (path.IsInteger()) return GetTemplateItem(value, path);
  Value at = value;
  for (const absl::string_view part : absl::StrSplit(path.text(), '.')) {
    int64_t idx = 0;
    ASSIGN_OR_RETURN(
        at, GetTemplateItem(at, absl::SimpleAtoi(part, &idx)
                                    ? Value::Integer(idx)
                                    : Value::String(std::string(part))));
  }
  return at;
}

FilterResult DefaultFilter(const FilterCall& call) {
  RETURN_IF_ERROR(call.args.Allow(call.name, {"default_value", "boolean"}));
  if (call.value.IsUndefined() ||
      (call.Flag(1, "boolean", false) && !call.value.IsTrue())) {
    const Value* otherwise = call.args.Get(0, "default_value");
    return otherwise == nullptr ? Value::String("") : *otherwise;
  }
  return call.value;
}

FilterResult JoinFilter(const FilterCall& call) {
  RETURN_IF_ERROR(call.args.Allow(call.name, {"d", "attribute"}));
  const std::string separator = call.TextOf(0, "d", "");
  const Value* attribute = call.args.Get(1, "attribute");
  ASSIGN_OR_RETURN(const TemplateList items, call.value.Elements());
  std::string joined;
  for (size_t i = 0; i < items.size(); ++i) {
    Value item = items[i];
    if (attribute != nullptr && !attribute->Is(Kind::kNone)) {
      ASSIGN_OR_RETURN(item, AtPath(item, *attribute));
    }
    RETURN_IF_ERROR(call.meter.Charge(item.weight() +
                                      static_cast<int64_t>(separator.size())));
    if (i > 0) joined += separator;
    joined += TemplateText(item, call.meter.max_bytes());
  }
  return Value::String(std::move(joined));
}

FilterResult LengthFilter(const FilterCall& call) {
  const Value& value = call.value;
  if (value.IsNumber() || value.Is(Kind::kNone) || value.Is(Kind::kFunction) ||
      value.Is(Kind::kNamespace)) {
    return absl::InvalidArgumentError(
        absl::StrCat("object of type '", value.TypeName(), "' has no len()"));
  }
  return Value::Integer(value.Length());
}

FilterResult EndFilter(const FilterCall& call) {  // first, last
  ASSIGN_OR_RETURN(const TemplateList items, call.value.Elements());
  if (items.empty()) {
    return Value::Undefined("the first or last of an empty sequence");
  }
  return call.name == "first" ? items.front() : items.back();
}

FilterResult ListFilter(const FilterCall& call) {
  ASSIGN_OR_RETURN(TemplateList items, call.value.Elements());
  return Value::List(std::move(items));
}

FilterResult ItemsFilter(const FilterCall& call) {
  if (call.value.IsUndefined()) return Value::List({});
  if (!call.value.IsDict()) {
    return absl::InvalidArgumentError("items: can only get items of a dict");
  }
  return CallTemplateMethod(call.value, "items", {}, call.meter);
}

FilterResult ReverseFilter(const FilterCall& call) {
  ASSIGN_OR_RETURN(TemplateList items, call.value.Elements());
  std::reverse(items.begin(), items.end());
  if (!call.value.IsString()) return Value::List(std::move(items));
  std::string text;
  for (const Value& item : items) text += item.text();
  return Value::String(std::move(text));
}

FilterResult ReplaceFilter(const FilterCall& call) {
  RETURN_IF_ERROR(call.args.Allow(call.name, {"old", "new", "count"}));
  ASSIGN_OR_RETURN(const int64_t count, call.Number(2, "count", -1));
  ASSIGN_OR_RETURN(std::string replaced,
                   ReplaceText(call.Text(), call.TextOf(0, "old", ""),
                               call.TextOf(1, "new", ""), count, call.meter));
  return Value::String(std::move(replaced));
}

FilterResult TrimFilter(const FilterCall& call) {
  RETURN_IF_ERROR(call.args.Allow(call.name, {"chars"}));
  return Value::String(
      StripText(call.Text(), call.TextOf(0, "chars", ""), true, true));
}

FilterResult CaseFilter(const FilterCall& call) {
  return Value::String(ChangeCase(call.Text(), call.name));
}

// Words begin behind white space, '-' and opening brackets.
FilterResult TitleFilter(const FilterCall& call) {
  const std::string text = call.Text();
  std::string title;
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end =
        std::min(text.size(), text.find_first_of("- \t\n\r\f\v({[<", begin));
    if (end > begin) {
      title += ChangeCase(text.substr(begin, end - begin), "capitalize");
    }
    if (end < text.size()) title.push_back(text[end]);
    begin = end + 1;
  }
  return Value::String(std::move(title));
}

FilterResult IndentFilter(const FilterCall& call) {
  RETURN_IF_ERROR(call.args.Allow(call.name, {"width", "first", "blank"}));
  const Value* width = call.args.Get(0, "width");
  ASSIGN_OR_RETURN(const int64_t spaces, width != nullptr && width->IsString()
                                             ? absl::StatusOr<int64_t>(0)
                                             : call.Number(0, "width", 4));
  RETURN_IF_ERROR(call.meter.Charge(spaces));
  const std::string pad =
      width != nullptr && width->IsString()
          ? width->text()
          : std::string(static_cast<size_t>(std::max<int64_t>(0, spaces)), ' ');
  const bool blank = call.Flag(2, "blank", false);
  // Jinja splits the text with a newline added, and joins it with newlines.
  const std::vector<std::string> lines = SplitLines(call.Text() + "\n");
  std::string text;
  for (size_t i = 0; i < lines.size(); ++i) {
    RETURN_IF_ERROR(call.meter.Charge(static_cast<int64_t>(pad.size())));
    if (i > 0) text.push_back('\n');
    const bool pads =
        i == 0 ? call.Flag(1, "first", false) : blank || !lines[i].empty();
    if (pads) text += pad;
    text += lines[i];
  }
  return Value::String(std::move(text));
}

FilterResult TojsonFilter(const FilterCall& call) {
  RETURN_IF_ERROR(call.args.Allow(
      call.name, {"ensure_ascii", "indent", "separators", "sort_keys"}));
  TojsonOptions options;
  options.ensure_ascii = call.Flag(0, "ensure_ascii", false);
  options.sort_keys = call.Flag(3, "sort_keys", false);
  ASSIGN_OR_RETURN(options.indent, call.Number(1, "indent", -1));
  if (options.indent > 100) {
    return absl::InvalidArgumentError("tojson: indent is above 100");
  }
  if (options.indent >= 0) options.item_separator = ",";
  if (const Value* separators = call.args.Get(2, "separators");
      separators != nullptr && !separators->Is(Kind::kNone)) {
    if (!separators->IsSequence() || separators->items().size() != 2 ||
        !separators->items()[0].IsString() ||
        !separators->items()[1].IsString()) {
      return absl::InvalidArgumentError(
          "tojson: separators are two strings, of items and of keys");
    }
    options.item_separator = separators->items()[0].text();
    options.key_separator = separators->items()[1].text();
  }
  ASSIGN_OR_RETURN(std::string text,
                   TemplateJson(call.value, options, call.meter.max_bytes()));
  return Value::String(std::move(text));
}

// map(attribute=...), map('filter', ...)
FilterResult MapFilter(const FilterCall& call) {
  ASSIGN_OR_RETURN(const TemplateList items, call.value.Elements());
  TemplateList mapped;
  const Value* attribute =
      call.args.positional.empty() ? call.args.Get(99, "attribute") : nullptr;
  if (attribute == nullptr &&
      (call.args.positional.empty() || !call.args.positional[0].IsString())) {
    return absl::InvalidArgumentError("map: expects a filter or attribute=");
  }
  TemplateArguments rest = call.args;
  std::string filter;
  if (attribute == nullptr) {
    filter = rest.positional[0].text();
    rest.positional.erase(rest.positional.begin());
  }
  for (const Value& item : items) {
    Value result;
    if (attribute == nullptr) {
      ASSIGN_OR_RETURN(result,
                       ApplyTemplateFilter(filter, item, rest, call.meter));
    } else {
      ASSIGN_OR_RETURN(result, AtPath(item, *attribute));
      const Value* otherwise = call.args.Get(99, "default");
      if (result.IsUndefined() && otherwise != nullptr) result = *otherwise;
    }
    RETURN_IF_ERROR(call.meter.ChargeFor(result));
    mapped.push_back(std::move(result));
  }
  return Value::List(std::move(mapped));
}

// select, reject, selectattr, rejectattr
FilterResult SelectFilter(const FilterCall& call) {
  const bool by_attribute = absl::EndsWith(call.name, "attr");
  const bool keeps = absl::StartsWith(call.name, "select");
  TemplateArguments rest = call.args;
  Value attribute;
  if (by_attribute) {
    if (rest.positional.empty() || !rest.positional[0].IsString()) {
      return absl::InvalidArgumentError(
          absl::StrCat(call.name, ": expects the name of an attribute"));
    }
    attribute = rest.positional[0];
    rest.positional.erase(rest.positional.begin());
  }
  std::string test;
  if (!rest.positional.empty()) {
    test = rest.positional[0].text();
    rest.positional.erase(rest.positional.begin());
  }
  ASSIGN_OR_RETURN(const TemplateList items, call.value.Elements());
  TemplateList selected;
  for (const Value& item : items) {
    RETURN_IF_ERROR(call.meter.Charge(1));
    Value tested = item;
    if (by_attribute) {
      ASSIGN_OR_RETURN(tested, AtPath(item, attribute));
    }
    bool is = tested.IsTrue();
    if (!test.empty()) {
      ASSIGN_OR_RETURN(is, ApplyTemplateTest(test, tested, rest, call.meter));
    }
    if (is == keeps) selected.push_back(item);
  }
  return Value::List(std::move(selected));
}

Value SortKey(const Value& value, bool case_sensitive) {
  return value.IsString() && !case_sensitive
             ? Value::String(ChangeCase(value.text(), "lower"))
             : value;
}

// sort, unique, min, max, dictsort
FilterResult SortFilter(const FilterCall& call) {
  const bool is_dictsort = call.name == "dictsort";
  const bool is_sort = call.name == "sort";
  if (is_dictsort) {
    RETURN_IF_ERROR(
        call.args.Allow(call.name, {"case_sensitive", "by", "reverse"}));
  } else if (is_sort) {
    RETURN_IF_ERROR(
        call.args.Allow(call.name, {"reverse", "case_sensitive", "attribute"}));
  } else {
    RETURN_IF_ERROR(
        call.args.Allow(call.name, {"case_sensitive", "attribute"}));
  }
  const bool case_sensitive =
      call.Flag(is_sort ? 1 : 0, "case_sensitive", false);
  const Value* attribute =
      is_dictsort ? nullptr : call.args.Get(is_sort ? 2 : 1, "attribute");
  TemplateList items;
  if (is_dictsort) {
    ASSIGN_OR_RETURN(const Value pairs, ItemsFilter(call));
    items = pairs.items();
  } else {
    ASSIGN_OR_RETURN(items, call.value.Elements());
  }
  const int64_t part = call.TextOf(1, "by", "key") == "value" ? 1 : 0;
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : items) {
    Value key = item;
    if (is_dictsort) {
      key = item.items()[static_cast<size_t>(part)];
    } else if (attribute != nullptr && !attribute->Is(Kind::kNone)) {
      ASSIGN_OR_RETURN(key, AtPath(item, *attribute));
    }
    RETURN_IF_ERROR(call.meter.Charge(
        (key.weight() + 1) *
        static_cast<int64_t>(std::log2(items.size() + 1) + 1)));
    keyed.emplace_back(SortKey(key, case_sensitive), item);
  }
  if (call.name == "unique") {
    TemplateList unique;
    for (size_t i = 0; i < keyed.size(); ++i) {
      RETURN_IF_ERROR(call.meter.Charge(static_cast<int64_t>(i)));
      const bool seen = std::any_of(
          keyed.begin(), keyed.begin() + static_cast<std::ptrdiff_t>(i),
          [&](const auto& other) {
            return TemplateEquals(other.first, keyed[i].first);
          });
      if (!seen) unique.push_back(keyed[i].second);
    }
    return Value::List(std::move(unique));
  }
  // Types without an order are found before the sort, which must not fail.
  for (size_t i = 1; i < keyed.size(); ++i) {
    RETURN_IF_ERROR(TemplateCompare(keyed[0].first, keyed[i].first).status());
    RETURN_IF_ERROR(
        TemplateCompare(keyed[i - 1].first, keyed[i].first).status());
  }
  const auto below = [](const auto& a, const auto& b) {
    return TemplateCompare(a.first, b.first).value_or(0) < 0;
  };
  if (call.name == "min" || call.name == "max") {
    if (keyed.empty()) return Value::Undefined("no aggregated item");
    return call.name == "min"
               ? std::min_element(keyed.begin(), keyed.end(), below)->second
               : std::max_element(keyed.begin(), keyed.end(), below)->second;
  }
  const bool reverse = call.Flag(is_dictsort ? 2 : 0, "reverse", false);
  if (reverse) std::reverse(keyed.begin(), keyed.end());
  std::stable_sort(keyed.begin(), keyed.end(), below);
  if (reverse) std::reverse(keyed.begin(), keyed.end());
  TemplateList sorted;
  for (auto& [key, item] : keyed) sorted.push_back(std::move(item));
  return Value::List(std::move(sorted));
}

FilterResult IntFilter(const FilterCall& call) {
  RETURN_IF_ERROR(call.args.Allow(call.name, {"default", "base"}));
  ASSIGN_OR_RETURN(const int64_t otherwise, call.Number(0, "default", 0));
  const Value& value = call.value;
  if (value.IsInteger()) return Value::Integer(value.integer());
  double number = 0;
  int64_t integer = 0;
  if (value.IsString()) {
    const std::string text = StripText(value.text(), "", true, true);
    if (absl::SimpleAtoi(text, &integer)) return Value::Integer(integer);
    if (!absl::SimpleAtod(text, &number)) return Value::Integer(otherwise);
  } else if (value.Is(Kind::kFloat)) {
    number = value.number();
  } else {
    return Value::Integer(otherwise);
  }
  if (!(std::abs(number) < 9e18)) return Value::Integer(otherwise);
  return Value::Integer(static_cast<int64_t>(number));
}

FilterResult FloatFilter(const FilterCall& call) {
  RETURN_IF_ERROR(call.args.Allow(call.name, {"default"}));
  const Value* given = call.args.Get(0, "default");
  const Value otherwise = given == nullptr ? Value::Float(0) : *given;
  if (call.value.IsNumber()) return Value::Float(call.value.number());
  double number = 0;
  if (call.value.IsString() &&
      absl::SimpleAtod(StripText(call.value.text(), "", true, true), &number)) {
    return Value::Float(number);
  }
  return otherwise;
}

FilterResult AbsFilter(const FilterCall& call) {
  if (call.value.IsInteger() && call.value.integer() != INT64_MIN) {
    return Value::Integer(std::abs(call.value.integer()));
  }
  if (call.value.IsNumber()) return Value::Float(std::abs(call.value.number()));
  return absl::InvalidArgumentError(absl::StrCat(
      "bad operand type for abs(): '", call.value.TypeName(), "'"));
}

FilterResult RoundFilter(const FilterCall& call) {
  RETURN_IF_ERROR(call.args.Allow(call.name, {"precision", "method"}));
  ASSIGN_OR_RETURN(const int64_t precision, call.Number(0, "precision", 0));
  const std::string method = call.TextOf(1, "method", "common");
  if (!call.value.IsNumber()) {
    return absl::InvalidArgumentError("round: expects a number");
  }
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = call.value.number() * scale;
  const double rounded = method == "ceil"    ? std::ceil(scaled)
                         : method == "floor" ? std::floor(scaled)
                                             : std::nearbyint(scaled);
  return Value::Float(rounded / scale);
}

FilterResult SumFilter(const FilterCall& call) {
  RETURN_IF_ERROR(call.args.Allow(call.name, {"attribute", "start"}));
  const Value* start = call.args.Get(1, "start");
  Value sum = start == nullptr ? Value::Integer(0) : *start;
  const Value* attribute = call.args.Get(0, "attribute");
  ASSIGN_OR_RETURN(const TemplateList items, call.value.Elements());
  for (const Value& item : items) {
    Value term = item;
    if (attribute != nullptr && !attribute->Is(Kind::kNone)) {
      ASSIGN_OR_RETURN(term, AtPath(item, *attribute));
    }
    ASSIGN_OR_RETURN(sum, TemplateBinary("+", sum, term, call.meter));
  }
  return sum;
}

FilterResult SameFilter(const FilterCall& call) {  // safe
  return call.value.IsString() ? call.value : Value::String(call.Text());
}

FilterResult StringFilter(const FilterCall& call) {
  return Value::String(call.Text());
}

FilterResult AttrFilter(const FilterCall& call) {
  const Value* name = call.args.Get(0, "name");
  if (name == nullptr || !name->IsString()) {
    return absl::InvalidArgumentError("attr: expects a name");
  }
  if (HasTemplateMethod(call.value, name->text())) {
    return Value::Function(name->text(), -1, call.value);
  }
  return Value::Undefined(name->text());
}

FilterResult EscapeFilter(const FilterCall& call) {
  std::string text;
  for (const char c : call.Text()) {
    switch (c) {
      case '&':
        text += "&amp;";
        break;
      case '<':
        text += "&lt;";
        break;
      case '>':
        text += "&gt;";
        break;
      case '\'':
        text += "&#39;";
        break;
      case '"':
        text += "&#34;";
        break;
      default:
        text.push_back(c);
    }
  }
  return Value::String(std::move(text));
}

using Filter = FilterResult (*)(const FilterCall&);

const std::map<std::string, Filter>& AllFilters() {
  static const auto& filters = *new std::map<std::string, Filter>{
      {"abs", AbsFilter},         {"attr", AttrFilter},
      {"capitalize", CaseFilter}, {"count", LengthFilter},
      {"d", DefaultFilter},       {"default", DefaultFilter},
      {"dictsort", SortFilter},   {"e", EscapeFilter},
      {"escape", EscapeFilter},   {"first", EndFilter},
      {"float", FloatFilter},     {"indent", IndentFilter},
      {"int", IntFilter},         {"items", ItemsFilter},
      {"join", JoinFilter},       {"last", EndFilter},
      {"length", LengthFilter},   {"list", ListFilter},
      {"lower", CaseFilter},      {"map", MapFilter},
      {"max", SortFilter},        {"min", SortFilter},
      {"reject", SelectFilter},   {"rejectattr", SelectFilter},
      {"replace", ReplaceFilter}, {"reverse", ReverseFilter},
      {"round", RoundFilter},     {"safe", SameFilter},
      {"select", SelectFilter},   {"selectattr", SelectFilter},
      {"sort", SortFilter},       {"string", StringFilter},
      {"sum", SumFilter},         {"title", TitleFilter},
      {"tojson", TojsonFilter},   {"trim", TrimFilter},
      {"unique", SortFilter},     {"upper", CaseFilter},
  };
  return filters;
}

}  // namespace

absl::StatusOr<TemplateValue> ApplyTemplateFilter(const std::string& name,
                                                  const TemplateValue& value,
                                                  const TemplateArguments& args,
                                                  TemplateMeter& meter) {
  const auto found = AllFilters().find(name);
  if (found == AllFilters().end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the filter '", name, "' is not supported"));
  }
  RETURN_IF_ERROR(meter.Charge(value.weight()));
  return found->second({name, value, args, meter});
}

}  // namespace millrace
