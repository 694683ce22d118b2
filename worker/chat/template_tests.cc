#include <map>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/chat/template_functions.h"
#include "worker/chat/template_text.h"

namespace millrace {
namespace {

using Kind = TemplateValue::Kind;
using Value = TemplateValue;

// Tests of a value alone.
using PlainTest = bool (*)(const Value&);

const std::map<std::string, PlainTest>& PlainTests() {
  static const auto& tests = *new std::map<std::string, PlainTest>{
      {"boolean", [](const Value& v) { return v.Is(Kind::kBool); }},
      {"callable", [](const Value& v) { return v.Is(Kind::kFunction); }},
      {"defined", [](const Value& v) { return !v.IsUndefined(); }},
      {"escaped", [](const Value&) { return false; }},
      {"false",
       [](const Value& v) { return v.Is(Kind::kBool) && v.integer() == 0; }},
      {"float", [](const Value& v) { return v.Is(Kind::kFloat); }},
      {"integer", [](const Value& v) { return v.Is(Kind::kInteger); }},
      {"iterable",
       [](const Value& v) {
         return v.IsUndefined() || v.IsString() || v.IsSequence() || v.IsDict();
       }},
      {"lower",
       [](const Value& v) {
         return v.IsString() && IsTextOf(v.text(), "islower");
       }},
      {"mapping", [](const Value& v) { return v.IsDict(); }},
      {"none", [](const Value& v) { return v.Is(Kind::kNone); }},
      {"number", [](const Value& v) { return v.IsNumber(); }},
      {"sequence",
       [](const Value& v) {
         return v.IsUndefined() || v.IsString() || v.IsSequence() || v.IsDict();
       }},
      {"string", [](const Value& v) { return v.IsString(); }},
      {"true",
       [](const Value& v) { return v.Is(Kind::kBool) && v.integer() != 0; }},
      {"undefined", [](const Value& v) { return v.IsUndefined(); }},
      {"upper",
       [](const Value& v) {
         return v.IsString() && IsTextOf(v.text(), "isupper");
       }},
  };
  return tests;
}

// Names of comparisons.
absl::string_view RelationOf(const std::string& test) {
  if (test == "eq" || test == "equalto" || test == "==") return "==";
  if (test == "ne" || test == "!=") return "!=";
  if (test == "lt" || test == "lessthan" || test == "<") return "<";
  if (test == "le" || test == "<=") return "<=";
  if (test == "gt" || test == "greaterthan" || test == ">") return ">";
  if (test == "ge" || test == ">=") return ">=";
  if (test == "in") return "in";
  return "";
}

// The remainder, in Python's sense, by `divisor`.
absl::StatusOr<bool> IsDivisible(const Value& value, const Value& divisor,
                                 TemplateMeter& meter) {
  ASSIGN_OR_RETURN(const Value rest,
                   TemplateBinary("%", value, divisor, meter));
  return rest.number() == 0;
}

}  // namespace

absl::StatusOr<bool> ApplyTemplateTest(const std::string& name,
                                       const TemplateValue& value,
                                       const TemplateArguments& args,
                                       TemplateMeter& meter) {
  RETURN_IF_ERROR(meter.Charge(1));
  if (const auto found = PlainTests().find(name); found != PlainTests().end()) {
    RETURN_IF_ERROR(args.Allow(name, {}));
    return found->second(value);
  }
  if (name == "odd" || name == "even") {
    ASSIGN_OR_RETURN(const bool even,
                     IsDivisible(value, Value::Integer(2), meter));
    return even == (name == "even");
  }
  const bool divides = name == "divisibleby";
  const absl::string_view relation = name == "sameas" ? "==" : RelationOf(name);
  if (!divides && relation.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the test '", name, "' is not supported"));
  }
  const Value* other = args.Get(0, divides ? "num" : "other");
  if (other == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("the test '", name, "' expects an argument"));
  }
  if (divides) return IsDivisible(value, *other, meter);
  if (name == "sameas" && value.kind() != other->kind()) return false;
  return TemplateRelation(relation, value, *other, meter);
}

}  // namespace millrace
