#include "absl/strings/str_cat.h"
#include "absl/time/civil_time.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "worker/chat/template_functions.h"

namespace millrace {
namespace {

using Value = TemplateValue;

absl::StatusOr<Value> CallRange(const TemplateArguments& args,
                                TemplateMeter& meter) {
  RETURN_IF_ERROR(args.Allow("range", {"start", "stop", "step"}));
  int64_t bounds[3] = {0, 0, 1};
  for (size_t i = 0; i < args.positional.size(); ++i) {
    if (!args.positional[i].IsInteger()) {
      return absl::InvalidArgumentError("range() expects integers");
    }
    bounds[i] = args.positional[i].integer();
  }
  if (args.positional.size() == 1) std::swap(bounds[0], bounds[1]);
  const auto [start, stop, step] = bounds;
  if (args.positional.empty() || step == 0) {
    return absl::InvalidArgumentError(
        "range() expects a stop, and a step other than zero");
  }
  constexpr size_t kMaxRange = 100000;  // As the sandbox of Jinja.
  TemplateList items;
  for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
    if (items.size() == kMaxRange) {
      return absl::InvalidArgumentError("range() is larger than 100000");
    }
    RETURN_IF_ERROR(meter.Charge(1));
    items.push_back(Value::Integer(i));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return Value::List(std::move(items));
}

absl::StatusOr<Value> CallStrftime(const TemplateArguments& args,
                                   const std::string& date) {
  RETURN_IF_ERROR(args.Allow("strftime_now", {"format"}));
  const Value* format = args.Get(0, "format");
  absl::CivilDay day;
  if (format == nullptr || !format->IsString()) {
    return absl::InvalidArgumentError("strftime_now() expects a format");
  }
  if (!absl::ParseCivilTime(date, &day)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", date, "' is no date such as 2026-11-23"));
  }
  const absl::TimeZone utc = absl::UTCTimeZone();
  return Value::String(
      absl::FormatTime(format->text(), absl::FromCivil(day, utc), utc));
}

}  // namespace

bool IsTemplateBuiltin(absl::string_view name, const std::string& date) {
  return name == "range" || name == "namespace" || name == "dict" ||
         name == "raise_exception" || (name == "strftime_now" && !date.empty());
}

absl::StatusOr<TemplateValue> CallTemplateBuiltin(const std::string& name,
                                                  const TemplateArguments& args,
                                                  const std::string& date,
                                                  TemplateMeter& meter) {
  if (name == "raise_exception") {
    RETURN_IF_ERROR(args.Allow(name, {"message"}));
    const Value* message = args.Get(0, "message");
    return absl::InvalidArgumentError(
        absl::StrCat("the template raises: ",
                     message == nullptr ? "" : TemplateText(*message, 1000)));
  }
  if (name == "strftime_now") return CallStrftime(args, date);
  if (name == "range") return CallRange(args, meter);
  // dict and namespace
  TemplateDict items;
  if (!args.positional.empty()) {
    if (!args.positional[0].IsDict()) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, "() expects a dict or names"));
    }
    items = args.positional[0].dict();
  }
  for (const auto& [key, value] : args.named) {
    SetTemplateKey(key, value, &items);
  }
  return Value::Dict(std::move(items));
}

TemplateValue TemplateLoopAttribute(const TemplateList& items, size_t idx,
                                    int64_t depth, const std::string& name) {
  const auto at = static_cast<int64_t>(idx);
  const auto size = static_cast<int64_t>(items.size());
  if (name == "index") return Value::Integer(at + 1);
  if (name == "index0") return Value::Integer(at);
  if (name == "revindex") return Value::Integer(size - at);
  if (name == "revindex0") return Value::Integer(size - at - 1);
  if (name == "first") return Value::Bool(at == 0);
  if (name == "last") return Value::Bool(at + 1 == size);
  if (name == "length") return Value::Integer(size);
  if (name == "depth") return Value::Integer(depth + 1);
  if (name == "depth0") return Value::Integer(depth);
  if (name == "previtem" && at > 0) return items[idx - 1];
  if (name == "nextitem" && at + 1 < size) return items[idx + 1];
  return Value::Undefined(name);
}

void SetTemplateKey(const std::string& key, TemplateValue value,
                    TemplateDict* dict) {
  for (auto& [name, old] : *dict) {
    if (name == key) {
      old = std::move(value);
      return;
    }
  }
  dict->emplace_back(key, std::move(value));
}

}  // namespace millrace
