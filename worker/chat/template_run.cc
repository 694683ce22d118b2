#include "worker/chat/template_run.h"

#include <algorithm>
#include <deque>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/chat/template_scope.h"

namespace millrace {
namespace {

using Kind = TemplateValue::Kind;
using Value = TemplateValue;
using Expression = TemplateExpression;
using Node = TemplateNode;

// Nodes, expressions and macros within each other. Each takes a kibibyte or two
// of the stack.
constexpr int32_t kMaxRunDepth = 600;
constexpr int32_t kMaxMacroDepth = 60;

// How a list of nodes ended.
enum class Flow : uint8_t { kNormal, kBreak, kContinue };

class TemplateRunner {
 public:
  TemplateRunner(const TemplateTree& tree, const TemplateDict& variables,
                 const std::string& date, TemplateMeter& meter)
      : tree_(tree), variables_(variables), date_(date), meter_(meter) {
    scopes_.emplace_back();
  }

  absl::StatusOr<TemplateRunResult> Run() {
    RETURN_IF_ERROR(RunNodes(tree_.body).status());
    return TemplateRunResult{std::move(out_), std::move(generated_)};
  }

 private:
  // --- names ---
  void Assign(const std::string& name, Value value) {
    for (auto& [known, old] : scopes_.back().names) {
      if (known == name) {
        old = std::move(value);
        return;
      }
    }
    scopes_.back().names.emplace_back(name, std::move(value));
  }
  Value Lookup(const std::string& name) const {
    for (size_t i = scopes_.size(); i-- > 0;) {
      if (const Value* found = scopes_[i].Find(name)) return *found;
      if (name == "loop" && scopes_[i].loop != nullptr) {
        return Value::Function("loop", static_cast<int64_t>(i), Value());
      }
      if (scopes_[i].begins_function && i > 0) i = 1;
    }
    for (const auto& [known, value] : variables_) {
      if (known == name) return value;
    }
    const bool is_builtin = IsTemplateBuiltin(name, date_);
    if (is_builtin) return Value::Function(name, -1, Value());
    return Value::Undefined(name);
  }

  // --- nodes ---
  absl::StatusOr<Flow> RunNodes(const NodeList& nodes) {
    if (++depth_ > kMaxRunDepth) return TooDeep();
    for (const auto& node : nodes) {
      absl::StatusOr<Flow> flow = RunNode(*node);
      if (!flow.ok()) return AtTemplateLine(node->line, flow.status());
      if (*flow != Flow::kNormal) {
        --depth_;
        return flow;
      }
    }
    --depth_;
    return Flow::kNormal;
  }

  absl::Status TooDeep() const {
    return absl::ResourceExhaustedError("the template calls itself too deep");
  }

  absl::Status Print(absl::string_view text) {
    RETURN_IF_ERROR(meter_.Charge(static_cast<int64_t>(text.size())));
    absl::StrAppend(&out_, text);
    if (out_.size() < meter_.max_bytes()) return absl::OkStatus();
    return absl::ResourceExhaustedError("the template makes too much text");
  }

  // A macro's generation stays marked where its text is printed as it is.
  absl::Status PrintValueOf(const Expression& expression) {
    printed_ = &expression;
    generated_by_printed_.clear();
    ASSIGN_OR_RETURN(const Value value, Evaluate(expression));
    RETURN_IF_ERROR(meter_.Charge(value.weight()));
    const size_t begin = out_.size();
    for (const auto& [first, end] : std::exchange(generated_by_printed_, {})) {
      generated_.emplace_back(begin + first, begin + end);
    }
    return Print(TemplateText(value, meter_.max_bytes()));
  }

  absl::StatusOr<Flow> RunNode(const Node& node) {
    RETURN_IF_ERROR(meter_.Charge(1));
    switch (node.kind) {
      case Node::Kind::kText:
        RETURN_IF_ERROR(Print(node.text));
        return Flow::kNormal;
      case Node::Kind::kPrint:
        RETURN_IF_ERROR(PrintValueOf(*node.expression));
        return Flow::kNormal;
      case Node::Kind::kIf:
        for (const Node::Branch& branch : node.branches) {
          ASSIGN_OR_RETURN(const Value value, Evaluate(*branch.condition));
          if (value.IsTrue()) return RunNodes(branch.body);
        }
        return RunNodes(node.otherwise);
      case Node::Kind::kFor: {
        ASSIGN_OR_RETURN(const Value value, Evaluate(*node.expression));
        RETURN_IF_ERROR(RunLoop(node, value, /*depth=*/0));
        return Flow::kNormal;
      }
      case Node::Kind::kSet:
        RETURN_IF_ERROR(RunSet(node));
        return Flow::kNormal;
      case Node::Kind::kSetBlock: {
        ASSIGN_OR_RETURN(Value value, Capture(node));
        RETURN_IF_ERROR(AssignTo(node, std::move(value)));
        return Flow::kNormal;
      }
      case Node::Kind::kFilter: {
        ASSIGN_OR_RETURN(const Value value, Capture(node));
        RETURN_IF_ERROR(Print(TemplateText(value, meter_.max_bytes())));
        return Flow::kNormal;
      }
      case Node::Kind::kMacro:
        if (scopes_.size() > 1) {
          return absl::InvalidArgumentError(
              "a macro inside a loop, macro or block is not supported");
        }
        Assign(node.text, Value::Function(node.text, node.macro_idx, Value()));
        return Flow::kNormal;
      case Node::Kind::kCallBlock: {
        pending_caller_ = Value::Function("caller", node.macro_idx, Value());
        RETURN_IF_ERROR(PrintValueOf(*node.expression));
        return Flow::kNormal;
      }
      case Node::Kind::kGeneration: {
        const size_t begin = out_.size();
        ASSIGN_OR_RETURN(const Flow flow, RunScoped(node.body));
        if (out_.size() > begin) generated_.emplace_back(begin, out_.size());
        return flow;
      }
      case Node::Kind::kWith:
        return RunWith(node);
      case Node::Kind::kBreak:
        return Flow::kBreak;
      case Node::Kind::kContinue:
        return Flow::kContinue;
    }
    return Flow::kNormal;
  }

  absl::StatusOr<Flow> RunWith(const Node& node) {
    TemplateScope scope;
    for (const auto& [name, expression] : node.parameters) {
      ASSIGN_OR_RETURN(Value value, Evaluate(*expression));
      scope.names.emplace_back(name, std::move(value));
    }
    scopes_.push_back(std::move(scope));
    ASSIGN_OR_RETURN(const Flow flow, RunNodes(node.body));
    scopes_.pop_back();
    return flow;
  }

  absl::StatusOr<Flow> RunScoped(const NodeList& body) {
    scopes_.emplace_back();
    ASSIGN_OR_RETURN(const Flow flow, RunNodes(body));
    scopes_.pop_back();
    return flow;
  }

  // The text that `run` prints, in place of printing it. `is_printed`: the
  // caller prints just this text.
  template <typename Run>
  absl::StatusOr<Value> CaptureText(const Run& run, bool is_printed) {
    TemplateRunResult outer = {std::exchange(out_, ""),
                               std::exchange(generated_, {})};
    RETURN_IF_ERROR(run());
    Value text = Value::String(std::exchange(out_, std::move(outer.text)));
    generated_by_printed_ =
        std::exchange(generated_, std::move(outer.generated));
    if (is_printed || generated_by_printed_.empty()) return text;
    return absl::InvalidArgumentError(
        "'generation' in a text that is kept or changed before it is printed "
        "is not supported: where its text goes is not known");
  }
  absl::StatusOr<Value> Capture(const Node& node) {
    scopes_.emplace_back();
    ASSIGN_OR_RETURN(Value text,
                     CaptureText([&] { return RunNodes(node.body).status(); },
                                 /*is_printed=*/false));
    scopes_.pop_back();
    if (node.expression == nullptr) return text;
    captured_.push_back(std::move(text));
    ASSIGN_OR_RETURN(Value filtered, Evaluate(*node.expression));
    captured_.pop_back();
    return filtered;
  }

  absl::Status Unpack(const std::vector<std::string>& targets, bool unpacks,
                      const Value& value) {
    if (!unpacks) {
      Assign(targets[0], value);
      return absl::OkStatus();
    }
    ASSIGN_OR_RETURN(const TemplateList items, value.Elements());
    if (items.size() != targets.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("expected ", targets.size(), " values to unpack, found ",
                       items.size()));
    }
    for (size_t i = 0; i < items.size(); ++i) Assign(targets[i], items[i]);
    return absl::OkStatus();
  }

  absl::Status AssignTo(const Node& node, Value value) {
    if (node.attribute.empty()) {
      return Unpack(node.targets, node.unpacks, value);
    }
    const Value owner = Lookup(node.text);
    if (!owner.Is(Kind::kNamespace)) {
      return absl::InvalidArgumentError(
          absl::StrCat("cannot assign to '", node.text, ".", node.attribute,
                       "': '", node.text, "' is no namespace"));
    }
    TemplateDict& names = namespaces_[static_cast<size_t>(owner.integer())];
    for (auto& [name, old] : names) {
      if (name == node.attribute) {
        old = std::move(value);
        return absl::OkStatus();
      }
    }
    RETURN_IF_ERROR(meter_.Charge(100));
    names.emplace_back(node.attribute, std::move(value));
    return absl::OkStatus();
  }

  absl::Status RunSet(const Node& node) {
    ASSIGN_OR_RETURN(Value value, Evaluate(*node.expression));
    return AssignTo(node, std::move(value));
  }

  absl::Status RunLoop(const Node& node, const Value& value, int64_t depth) {
    RETURN_IF_ERROR(meter_.Charge(value.weight()));
    ASSIGN_OR_RETURN(TemplateList items, value.Elements());
    if (node.condition != nullptr) {
      TemplateList kept;
      scopes_.emplace_back();
      for (const Value& item : items) {
        RETURN_IF_ERROR(Unpack(node.targets, node.unpacks, item));
        ASSIGN_OR_RETURN(const Value is, Evaluate(*node.condition));
        if (is.IsTrue()) kept.push_back(item);
      }
      scopes_.pop_back();
      items = std::move(kept);
    }
    if (items.empty()) return RunNodes(node.otherwise).status();
    TemplateLoop loop = {.items = &items, .depth = depth, .node = &node};
    for (; loop.idx < items.size(); ++loop.idx) {
      RETURN_IF_ERROR(meter_.Charge(10));
      scopes_.push_back({.loop = &loop});
      RETURN_IF_ERROR(Unpack(node.targets, node.unpacks, items[loop.idx]));
      ASSIGN_OR_RETURN(const Flow flow, RunNodes(node.body));
      scopes_.pop_back();
      if (flow == Flow::kBreak) break;
    }
    return absl::OkStatus();
  }

  // --- expressions ---
  absl::StatusOr<Value> Evaluate(const Expression& expression) {
    if (++depth_ > kMaxRunDepth) return TooDeep();
    RETURN_IF_ERROR(meter_.Charge(1));
    absl::StatusOr<Value> value = EvaluateKind(expression);
    --depth_;
    if (!value.ok()) return AtTemplateLine(expression.line, value.status());
    return value;
  }

  // A value that was made just now.
  absl::StatusOr<Value> New(absl::StatusOr<Value> value) {
    if (value.ok()) RETURN_IF_ERROR(meter_.ChargeFor(*value));
    return value;
  }

  absl::StatusOr<Value> EvaluateKind(const Expression& e) {
    switch (e.kind) {
      case Expression::Kind::kLiteral:
        return e.value;
      case Expression::Kind::kName:
        return Lookup(e.text);
      case Expression::Kind::kList:
      case Expression::Kind::kTuple: {
        TemplateList items;
        for (const ExpressionPtr& child : e.children) {
          ASSIGN_OR_RETURN(Value item, Evaluate(*child));
          items.push_back(std::move(item));
        }
        return New(e.kind == Expression::Kind::kList
                       ? Value::List(std::move(items))
                       : Value::Tuple(std::move(items)));
      }
      case Expression::Kind::kDict:
        return EvaluateDict(e);
      case Expression::Kind::kAttribute: {
        ASSIGN_OR_RETURN(const Value owner, Evaluate(*e.children[0]));
        return Attribute(owner, e.text);
      }
      case Expression::Kind::kIndex: {
        ASSIGN_OR_RETURN(const Value owner, Evaluate(*e.children[0]));
        ASSIGN_OR_RETURN(const Value key, Evaluate(*e.children[1]));
        if (key.IsString() &&
            (owner.Is(Kind::kNamespace) || owner.Is(Kind::kFunction))) {
          return Attribute(owner, key.text());
        }
        if (owner.IsString()) RETURN_IF_ERROR(meter_.Charge(owner.weight()));
        return GetTemplateItem(owner, key);
      }
      case Expression::Kind::kSlice: {
        ASSIGN_OR_RETURN(const Value owner, Evaluate(*e.children[0]));
        Value parts[3];
        const Value* given[3] = {nullptr, nullptr, nullptr};
        for (size_t i = 0; i < 3; ++i) {
          if (e.children[i + 1] == nullptr) continue;
          ASSIGN_OR_RETURN(parts[i], Evaluate(*e.children[i + 1]));
          given[i] = &parts[i];
        }
        RETURN_IF_ERROR(meter_.Charge(owner.weight()));
        return New(SliceTemplateValue(owner, given[0], given[1], given[2]));
      }
      case Expression::Kind::kCall:
        return EvaluateCall(e);
      case Expression::Kind::kFilter: {
        Value value;
        if (e.children[0] == nullptr) {
          value = captured_.back();
        } else {
          ASSIGN_OR_RETURN(value, Evaluate(*e.children[0]));
        }
        ASSIGN_OR_RETURN(const TemplateArguments args, EvaluateArguments(e));
        return New(ApplyTemplateFilter(e.text, value, args, meter_));
      }
      case Expression::Kind::kTest: {
        ASSIGN_OR_RETURN(const Value value, Evaluate(*e.children[0]));
        ASSIGN_OR_RETURN(const TemplateArguments args, EvaluateArguments(e));
        ASSIGN_OR_RETURN(const bool is,
                         ApplyTemplateTest(e.text, value, args, meter_));
        return Value::Bool(is != e.negated);
      }
      case Expression::Kind::kUnary:
        return EvaluateUnary(e);
      case Expression::Kind::kBinary:
        return EvaluateBinary(e);
      case Expression::Kind::kCompare: {
        ASSIGN_OR_RETURN(Value left, Evaluate(*e.children[0]));
        for (size_t i = 0; i < e.operators.size(); ++i) {
          ASSIGN_OR_RETURN(Value right, Evaluate(*e.children[i + 1]));
          const std::string& op = e.operators[i];
          ASSIGN_OR_RETURN(const bool is,
                           TemplateRelation(op == "not in" ? "in" : op, left,
                                            right, meter_));
          if (is == (op == "not in")) return Value::Bool(false);
          left = std::move(right);
        }
        return Value::Bool(true);
      }
      case Expression::Kind::kChoice: {
        ASSIGN_OR_RETURN(const Value condition, Evaluate(*e.children[1]));
        if (condition.IsTrue()) return Evaluate(*e.children[0]);
        if (e.children[2] != nullptr) return Evaluate(*e.children[2]);
        return Value::Undefined(
            "the value of an 'if' without 'else' whose condition is false");
      }
    }
    return Value();
  }

  absl::StatusOr<Value> EvaluateDict(const Expression& e) {
    TemplateDict items;
    for (size_t i = 0; i + 1 < e.children.size(); i += 2) {
      ASSIGN_OR_RETURN(const Value key, Evaluate(*e.children[i]));
      if (!key.IsString()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "keys of dicts must be strings, found ", key.TypeName()));
      }
      ASSIGN_OR_RETURN(Value value, Evaluate(*e.children[i + 1]));
      SetTemplateKey(key.text(), std::move(value), &items);
    }
    return New(Value::Dict(std::move(items)));
  }
  absl::StatusOr<Value> EvaluateUnary(const Expression& e) {
    ASSIGN_OR_RETURN(const Value value, Evaluate(*e.children[0]));
    if (e.text == "not") return Value::Bool(!value.IsTrue());
    if (value.IsUndefined()) return UndefinedError(value);
    if (!value.IsNumber()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "bad operand type for unary ", e.text, ": '", value.TypeName(), "'"));
    }
    if (e.text == "+") {
      return value.IsInteger() ? Value::Integer(value.integer()) : value;
    }
    if (value.Is(Kind::kFloat)) return Value::Float(-value.number());
    return TemplateBinary("-", Value::Integer(0), value, meter_);
  }

  absl::StatusOr<Value> EvaluateBinary(const Expression& e) {
    ASSIGN_OR_RETURN(const Value left, Evaluate(*e.children[0]));
    if (e.text == "and" || e.text == "or") {
      if (left.IsTrue() == (e.text == "or")) return left;
      return Evaluate(*e.children[1]);
    }
    ASSIGN_OR_RETURN(const Value right, Evaluate(*e.children[1]));
    RETURN_IF_ERROR(meter_.Charge(left.weight() + right.weight()));
    return New(TemplateBinary(e.text, left, right, meter_));
  }

  absl::StatusOr<TemplateArguments> EvaluateArguments(const Expression& e) {
    TemplateArguments args;
    for (const ExpressionPtr& argument : e.arguments) {
      ASSIGN_OR_RETURN(Value value, Evaluate(*argument));
      args.positional.push_back(std::move(value));
    }
    for (const auto& [name, argument] : e.named_arguments) {
      ASSIGN_OR_RETURN(Value value, Evaluate(*argument));
      args.named.emplace_back(name, std::move(value));
    }
    return args;
  }

  absl::StatusOr<Value> Attribute(const Value& owner, const std::string& name) {
    if (owner.Is(Kind::kNamespace)) {
      for (const auto& [key, value] :
           namespaces_[static_cast<size_t>(owner.integer())]) {
        if (key == name) return value;
      }
      return Value::Undefined(name);
    }
    if (owner.Is(Kind::kFunction) && owner.text() == "loop") {
      return LoopAttribute(owner, name);
    }
    return GetTemplateAttribute(owner, name);
  }

  absl::StatusOr<TemplateLoop*> LoopOf(const Value& function) {
    const auto idx = static_cast<size_t>(function.macro_idx());
    if (idx < scopes_.size() && scopes_[idx].loop != nullptr) {
      return scopes_[idx].loop;
    }
    return absl::InvalidArgumentError("'loop' of a loop that has ended");
  }

  absl::StatusOr<Value> LoopAttribute(const Value& loop,
                                      const std::string& name) {
    ASSIGN_OR_RETURN(TemplateLoop * state, LoopOf(loop));
    if (name == "cycle" || name == "changed") {
      return Value::Function("loop." + name, loop.macro_idx(), Value());
    }
    return TemplateLoopAttribute(*state->items, state->idx, state->depth, name);
  }

  absl::StatusOr<Value> EvaluateCall(const Expression& e) {
    const bool is_printed = std::exchange(printed_, nullptr) == &e;
    const Value caller = std::exchange(pending_caller_, Value());
    ASSIGN_OR_RETURN(const Value function, Evaluate(*e.children[0]));
    ASSIGN_OR_RETURN(const TemplateArguments args, EvaluateArguments(e));
    if (function.IsUndefined()) return UndefinedError(function);
    if (!function.Is(Kind::kFunction)) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", function.TypeName(), "' object is not callable"));
    }
    const std::string& name = function.text();
    const Value owner = function.FunctionOwner();
    if (!owner.IsUndefined()) {
      return New(CallTemplateMethod(owner, name, args, meter_));
    }
    if (name == "loop" || absl::StartsWith(name, "loop.")) {
      return CallLoop(function, args, is_printed);
    }
    if (function.macro_idx() >= 0) {
      return CallMacro(function, args, caller, is_printed);
    }
    return CallBuiltin(name, args);
  }

  absl::StatusOr<Value> CallLoop(const Value& function,
                                 const TemplateArguments& args,
                                 bool is_printed) {
    ASSIGN_OR_RETURN(TemplateLoop * state, LoopOf(function));
    if (args.positional.empty()) {
      return absl::InvalidArgumentError("a call of 'loop' needs an argument");
    }
    if (function.text() == "loop.cycle") {
      return args.positional[state->idx % args.positional.size()];
    }
    if (function.text() == "loop.changed") {
      const Value now = Value::Tuple(args.positional);
      const bool changed =
          !state->has_changed || !TemplateEquals(state->last_changed, now);
      state->last_changed = now;
      state->has_changed = true;
      return Value::Bool(changed);
    }
    if (!state->node->recursive) {
      return absl::InvalidArgumentError(
          "'loop' is called, but its loop is not recursive");
    }
    if (++macro_depth_ > kMaxMacroDepth) return TooDeep();
    const auto run = [&] {
      return RunLoop(*state->node, args.positional[0], state->depth + 1);
    };
    ASSIGN_OR_RETURN(Value text, CaptureText(run, is_printed));
    --macro_depth_;
    return New(std::move(text));
  }

  absl::StatusOr<Value> CallMacro(const Value& function,
                                  const TemplateArguments& args,
                                  const Value& caller, bool is_printed) {
    if (++macro_depth_ > kMaxMacroDepth) return TooDeep();
    const Node& macro =
        *tree_.macros[static_cast<size_t>(function.macro_idx())];
    // A call block sees the names around it, a macro those of the template.
    scopes_.push_back({.begins_function = macro.kind == Node::Kind::kMacro});
    RETURN_IF_ERROR(CheckMacroArguments(macro, args));
    for (size_t i = 0; i < macro.parameters.size(); ++i) {
      const auto& [name, otherwise] = macro.parameters[i];
      if (const Value* given = args.Get(i, name)) {
        Assign(name, *given);
      } else if (otherwise != nullptr) {
        ASSIGN_OR_RETURN(Value value, Evaluate(*otherwise));
        Assign(name, std::move(value));
      } else {
        Assign(name, Value::Undefined(name));
      }
    }
    if (!caller.IsUndefined()) Assign("caller", caller);
    ASSIGN_OR_RETURN(
        Value text,
        CaptureText([&] { return RunNodes(macro.body).status(); }, is_printed));
    scopes_.pop_back();
    --macro_depth_;
    return New(std::move(text));
  }

  absl::StatusOr<Value> CallBuiltin(const std::string& name,
                                    const TemplateArguments& args) {
    ASSIGN_OR_RETURN(Value value,
                     CallTemplateBuiltin(name, args, date_, meter_));
    if (name != "namespace") return New(std::move(value));
    RETURN_IF_ERROR(meter_.Charge(200));
    namespaces_.push_back(value.dict());
    return Value::Namespace(static_cast<int64_t>(namespaces_.size()) - 1);
  }

  const TemplateTree& tree_;
  const TemplateDict& variables_;
  const std::string& date_;
  TemplateMeter& meter_;
  std::string out_;
  std::vector<std::pair<size_t, size_t>> generated_;  // In out_.
  // The expression whose value is printed as it is, until it is evaluated, and
  // what the macro that it calls generates, in the macro's text.
  const Expression* printed_ = nullptr;
  std::vector<std::pair<size_t, size_t>> generated_by_printed_;
  std::deque<TemplateScope> scopes_;  // The first is the template's own.
  std::vector<TemplateDict> namespaces_;
  std::vector<Value> captured_;  // The inputs of filters of blocks.
  Value pending_caller_;
  int32_t depth_ = 0;
  int32_t macro_depth_ = 0;
};

}  // namespace

absl::StatusOr<TemplateRunResult> RunTemplate(const TemplateTree& tree,
                                              const TemplateDict& variables,
                                              const std::string& date,
                                              TemplateMeter& meter) {
  return TemplateRunner(tree, variables, date, meter).Run();
}

}  // namespace millrace
