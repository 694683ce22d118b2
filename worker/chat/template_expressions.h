// The parser of expressions: the part of a template's syntax that tags share.
// template_syntax.cc parses the tags with it.

#ifndef MILLRACE_WORKER_CHAT_TEMPLATE_EXPRESSIONS_H_
#define MILLRACE_WORKER_CHAT_TEMPLATE_EXPRESSIONS_H_

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "worker/chat/template_lexer.h"
#include "worker/chat/template_syntax.h"

namespace millrace {

// The limit on how deep expressions and blocks nest. Trees are walked by
// recursion.
inline constexpr int32_t kMaxTreeDepth = 120;

class TemplateExpressionParser {
 protected:
  using Expression = TemplateExpression;
  using Token = TemplateToken;

  explicit TemplateExpressionParser(std::vector<Token> tokens)
      : tokens_(std::move(tokens)) {}

  // --- tokens ---
  const Token& Now() const { return tokens_[at_]; }
  const Token& Next() const {
    return tokens_[std::min(at_ + 1, tokens_.size() - 1)];
  }
  void Advance() {
    if (at_ + 1 < tokens_.size()) ++at_;
  }
  bool IsOperator(absl::string_view text) const {
    return Now().kind == Token::Kind::kOperator && Now().text == text;
  }
  bool IsName(absl::string_view text) const {
    return Now().kind == Token::Kind::kName && Now().text == text;
  }
  bool Skip(absl::string_view text) {
    if (!IsOperator(text) && !IsName(text)) return false;
    Advance();
    return true;
  }
  absl::Status Error(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat(Now().line, ": ", what));
  }
  std::string Found() const {
    switch (Now().kind) {
      case Token::Kind::kEnd:
        return "the end of the template";
      case Token::Kind::kPrintEnd:
        return "'}}'";
      case Token::Kind::kBlockEnd:
        return "'%}'";
      default:
        return absl::StrCat("'", Now().text, "'");
    }
  }
  absl::Status Expect(absl::string_view text) {
    if (Skip(text)) return absl::OkStatus();
    return Error(absl::StrCat("expected '", text, "', found ", Found()));
  }
  absl::Status ExpectKind(Token::Kind kind, absl::string_view text) {
    if (Now().kind != kind) {
      return Error(absl::StrCat("expected '", text, "', found ", Found()));
    }
    Advance();
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> ExpectName() {
    if (Now().kind != Token::Kind::kName) {
      return Error(absl::StrCat("expected a name, found ", Found()));
    }
    std::string name = Now().text;
    Advance();
    return name;
  }

  // --- expressions ---
  ExpressionPtr New(Expression::Kind kind, std::string text = "") const {
    auto expression = std::make_unique<Expression>();
    expression->kind = kind;
    expression->line = Now().line;
    expression->text = std::move(text);
    return expression;
  }
  ExpressionPtr Literal(TemplateValue value) const {
    ExpressionPtr literal = New(Expression::Kind::kLiteral);
    literal->value = std::move(value);
    return literal;
  }
  // Adds a child, and refuses trees that are too deep to walk.
  absl::Status AddChild(Expression* parent, ExpressionPtr child) const {
    if (child != nullptr) {
      parent->depth = std::max(parent->depth, child->depth + 1);
    }
    parent->children.push_back(std::move(child));
    if (parent->depth <= kMaxTreeDepth) return absl::OkStatus();
    return Error("the expression has too many parts: set some apart");
  }
  absl::StatusOr<ExpressionPtr> Joined(Expression::Kind kind, std::string text,
                                       ExpressionPtr a, ExpressionPtr b) const {
    ExpressionPtr joined = New(kind, std::move(text));
    RETURN_IF_ERROR(AddChild(joined.get(), std::move(a)));
    if (b != nullptr) RETURN_IF_ERROR(AddChild(joined.get(), std::move(b)));
    return joined;
  }

  // An expression, or several with commas: a tuple.
  absl::StatusOr<ExpressionPtr> ParseTuple(bool with_choice = true) {
    const auto parse = [&] {
      return with_choice ? ParseExpression() : ParseOr();
    };
    ASSIGN_OR_RETURN(ExpressionPtr first, parse());
    if (!IsOperator(",")) return first;
    ExpressionPtr tuple = New(Expression::Kind::kTuple);
    RETURN_IF_ERROR(AddChild(tuple.get(), std::move(first)));
    while (Skip(",")) {
      if (Now().kind == Token::Kind::kBlockEnd ||
          Now().kind == Token::Kind::kPrintEnd || IsOperator(")")) {
        break;
      }
      ASSIGN_OR_RETURN(ExpressionPtr item, parse());
      RETURN_IF_ERROR(AddChild(tuple.get(), std::move(item)));
    }
    return tuple;
  }

  absl::StatusOr<ExpressionPtr> ParseExpression() {
    if (++expression_depth_ > kMaxTreeDepth) {
      return Error("expressions are nested too deep");
    }
    ASSIGN_OR_RETURN(ExpressionPtr value, ParseOr());
    while (Skip("if")) {
      ExpressionPtr choice = New(Expression::Kind::kChoice);
      RETURN_IF_ERROR(AddChild(choice.get(), std::move(value)));
      ASSIGN_OR_RETURN(ExpressionPtr condition, ParseOr());
      RETURN_IF_ERROR(AddChild(choice.get(), std::move(condition)));
      ExpressionPtr otherwise;
      if (Skip("else")) {
        ASSIGN_OR_RETURN(otherwise, ParseExpression());
      }
      RETURN_IF_ERROR(AddChild(choice.get(), std::move(otherwise)));
      value = std::move(choice);
    }
    --expression_depth_;
    return value;
  }

  absl::StatusOr<ExpressionPtr> ParseOr() {
    ASSIGN_OR_RETURN(ExpressionPtr left, ParseAnd());
    while (Skip("or")) {
      ASSIGN_OR_RETURN(ExpressionPtr right, ParseAnd());
      ASSIGN_OR_RETURN(left, Joined(Expression::Kind::kBinary, "or",
                                    std::move(left), std::move(right)));
    }
    return left;
  }
  absl::StatusOr<ExpressionPtr> ParseAnd() {
    ASSIGN_OR_RETURN(ExpressionPtr left, ParseNot());
    while (Skip("and")) {
      ASSIGN_OR_RETURN(ExpressionPtr right, ParseNot());
      ASSIGN_OR_RETURN(left, Joined(Expression::Kind::kBinary, "and",
                                    std::move(left), std::move(right)));
    }
    return left;
  }
  absl::StatusOr<ExpressionPtr> ParseNot() {
    if (!IsName("not")) return ParseCompare();
    if (++expression_depth_ > kMaxTreeDepth) {
      return Error("expressions are nested too deep");
    }
    Advance();
    ASSIGN_OR_RETURN(ExpressionPtr value, ParseNot());
    --expression_depth_;
    return Joined(Expression::Kind::kUnary, "not", std::move(value), nullptr);
  }

  // The comparison at the current token, or none.
  std::string SkipComparison() {
    for (const absl::string_view op : {"==", "!=", "<=", ">=", "<", ">"}) {
      if (IsOperator(op)) {
        Advance();
        return std::string(op);
      }
    }
    if (Skip("in")) return "in";
    if (IsName("not") && Next().kind == Token::Kind::kName &&
        Next().text == "in") {
      Advance();
      Advance();
      return "not in";
    }
    return "";
  }
  absl::StatusOr<ExpressionPtr> ParseCompare() {
    ASSIGN_OR_RETURN(ExpressionPtr first, ParseSum());
    ExpressionPtr compare;
    for (std::string op = SkipComparison(); !op.empty();
         op = SkipComparison()) {
      if (compare == nullptr) {
        compare = New(Expression::Kind::kCompare);
        RETURN_IF_ERROR(AddChild(compare.get(), std::move(first)));
      }
      ASSIGN_OR_RETURN(ExpressionPtr next, ParseSum());
      RETURN_IF_ERROR(AddChild(compare.get(), std::move(next)));
      compare->operators.push_back(std::move(op));
    }
    return compare == nullptr ? std::move(first) : std::move(compare);
  }

  using ParseOperand =
      absl::StatusOr<ExpressionPtr> (TemplateExpressionParser::*)();
  absl::StatusOr<ExpressionPtr> ParseBinary(
      std::initializer_list<absl::string_view> operators,
      ParseOperand parse_operand) {
    ASSIGN_OR_RETURN(ExpressionPtr left, (this->*parse_operand)());
    while (true) {
      const auto* op =
          std::find_if(operators.begin(), operators.end(),
                       [&](absl::string_view o) { return IsOperator(o); });
      if (op == operators.end()) return left;
      Advance();
      ASSIGN_OR_RETURN(ExpressionPtr right, (this->*parse_operand)());
      ASSIGN_OR_RETURN(left, Joined(Expression::Kind::kBinary, std::string(*op),
                                    std::move(left), std::move(right)));
    }
  }
  absl::StatusOr<ExpressionPtr> ParseSum() {
    return ParseBinary({"+", "-"},
                       &TemplateExpressionParser::ParseConcatenation);
  }
  absl::StatusOr<ExpressionPtr> ParseConcatenation() {
    return ParseBinary({"~"}, &TemplateExpressionParser::ParseProduct);
  }
  absl::StatusOr<ExpressionPtr> ParseProduct() {
    return ParseBinary({"*", "//", "/", "%"},
                       &TemplateExpressionParser::ParsePower);
  }
  absl::StatusOr<ExpressionPtr> ParsePower() {
    return ParseBinary({"**"}, &TemplateExpressionParser::ParseSigned);
  }
  absl::StatusOr<ExpressionPtr> ParseSigned() {
    return ParseUnary(/*with_filter=*/true);
  }

  absl::StatusOr<ExpressionPtr> ParseUnary(bool with_filter) {
    ExpressionPtr value;
    if (IsOperator("-") || IsOperator("+")) {
      if (++expression_depth_ > kMaxTreeDepth) {
        return Error("expressions are nested too deep");
      }
      const std::string sign = Now().text;
      Advance();
      ASSIGN_OR_RETURN(ExpressionPtr operand, ParseUnary(false));
      ASSIGN_OR_RETURN(value, Joined(Expression::Kind::kUnary, sign,
                                     std::move(operand), nullptr));
      --expression_depth_;
    } else {
      ASSIGN_OR_RETURN(value, ParsePrimary());
    }
    ASSIGN_OR_RETURN(value, ParsePostfix(std::move(value)));
    return with_filter ? ParseFilters(std::move(value)) : std::move(value);
  }

  absl::StatusOr<ExpressionPtr> ParsePrimary() {
    const Token& token = Now();
    switch (token.kind) {
      case Token::Kind::kName: {
        ExpressionPtr name;
        if (token.text == "true" || token.text == "True") {
          name = Literal(TemplateValue::Bool(true));
        } else if (token.text == "false" || token.text == "False") {
          name = Literal(TemplateValue::Bool(false));
        } else if (token.text == "none" || token.text == "None") {
          name = Literal(TemplateValue::None());
        } else {
          name = New(Expression::Kind::kName, token.text);
        }
        Advance();
        return name;
      }
      case Token::Kind::kString: {
        std::string text;
        for (; Now().kind == Token::Kind::kString; Advance()) {
          text += Now().text;
        }
        return Literal(TemplateValue::String(std::move(text)));
      }
      case Token::Kind::kInteger: {
        int64_t value = 0;
        if (!absl::SimpleAtoi(token.text, &value)) {
          return Error(
              absl::StrCat("the number ", token.text, " is too large"));
        }
        Advance();
        return Literal(TemplateValue::Integer(value));
      }
      case Token::Kind::kFloat: {
        double value = 0;
        if (!absl::SimpleAtod(token.text, &value)) {
          return Error(absl::StrCat("'", token.text, "' is no number"));
        }
        Advance();
        return Literal(TemplateValue::Float(value));
      }
      default:
        break;
    }
    if (Skip("(")) return ParseParenthesis();
    if (Skip("[")) {
      ExpressionPtr list = New(Expression::Kind::kList);
      RETURN_IF_ERROR(ParseItems("]", list.get(), /*with_keys=*/false));
      return list;
    }
    if (Skip("{")) {
      ExpressionPtr dict = New(Expression::Kind::kDict);
      RETURN_IF_ERROR(ParseItems("}", dict.get(), /*with_keys=*/true));
      return dict;
    }
    return Error(absl::StrCat("expected an expression, found ", Found()));
  }

  absl::StatusOr<ExpressionPtr> ParseParenthesis() {
    if (Skip(")")) return New(Expression::Kind::kTuple);
    ASSIGN_OR_RETURN(ExpressionPtr value, ParseTuple());
    RETURN_IF_ERROR(Expect(")"));
    return value;
  }

  absl::Status ParseItems(absl::string_view end, Expression* parent,
                          bool with_keys) {
    while (!Skip(end)) {
      if (!parent->children.empty()) {
        RETURN_IF_ERROR(Expect(","));
        if (Skip(end)) break;
      }
      for (int part = 0; part < (with_keys ? 2 : 1); ++part) {
        if (part == 1) RETURN_IF_ERROR(Expect(":"));
        ASSIGN_OR_RETURN(ExpressionPtr item, ParseExpression());
        RETURN_IF_ERROR(AddChild(parent, std::move(item)));
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<ExpressionPtr> ParsePostfix(ExpressionPtr value) {
    while (true) {
      if (Skip(".")) {
        if (Now().kind == Token::Kind::kInteger) {
          ASSIGN_OR_RETURN(ExpressionPtr idx, ParsePrimary());
          ASSIGN_OR_RETURN(value, Joined(Expression::Kind::kIndex, "",
                                         std::move(value), std::move(idx)));
          continue;
        }
        ASSIGN_OR_RETURN(std::string name, ExpectName());
        ASSIGN_OR_RETURN(value,
                         Joined(Expression::Kind::kAttribute, std::move(name),
                                std::move(value), nullptr));
      } else if (Skip("[")) {
        ASSIGN_OR_RETURN(value, ParseSubscript(std::move(value)));
      } else if (IsOperator("(")) {
        ASSIGN_OR_RETURN(value, ParseCall(std::move(value)));
      } else {
        return value;
      }
    }
  }

  absl::StatusOr<ExpressionPtr> ParseSubscript(ExpressionPtr value) {
    ExpressionPtr parts[3];
    bool is_slice = false;
    for (size_t part = 0; part < 3; ++part) {
      if (!IsOperator(":") && !IsOperator("]")) {
        ASSIGN_OR_RETURN(parts[part],
                         part == 0 ? ParseTuple() : ParseExpression());
      }
      if (!Skip(":")) break;
      is_slice = true;
    }
    RETURN_IF_ERROR(Expect("]"));
    if (!is_slice) {
      if (parts[0] == nullptr) return Error("expected a subscript");
      return Joined(Expression::Kind::kIndex, "", std::move(value),
                    std::move(parts[0]));
    }
    ExpressionPtr slice = New(Expression::Kind::kSlice);
    RETURN_IF_ERROR(AddChild(slice.get(), std::move(value)));
    for (ExpressionPtr& part : parts) {
      RETURN_IF_ERROR(AddChild(slice.get(), std::move(part)));
    }
    return slice;
  }

  absl::StatusOr<ExpressionPtr> ParseCall(ExpressionPtr value) {
    ASSIGN_OR_RETURN(ExpressionPtr call, Joined(Expression::Kind::kCall, "",
                                                std::move(value), nullptr));
    RETURN_IF_ERROR(ParseArguments(call.get()));
    return call;
  }

  absl::Status ParseArguments(Expression* call) {
    RETURN_IF_ERROR(Expect("("));
    for (bool first = true; !Skip(")"); first = false) {
      if (!first) {
        RETURN_IF_ERROR(Expect(","));
        if (Skip(")")) break;
      }
      if (IsOperator("*") || IsOperator("**")) {
        return Error("unpacked arguments (* and **) are not supported");
      }
      std::string name;
      if (Now().kind == Token::Kind::kName &&
          Next().kind == Token::Kind::kOperator && Next().text == "=") {
        name = Now().text;
        Advance();
        Advance();
      }
      ASSIGN_OR_RETURN(ExpressionPtr value, ParseExpression());
      call->depth = std::max(call->depth, value->depth + 1);
      if (!name.empty()) {
        call->named_arguments.emplace_back(std::move(name), std::move(value));
      } else if (!call->named_arguments.empty()) {
        return Error("an argument by position after one by name");
      } else {
        call->arguments.push_back(std::move(value));
      }
    }
    if (call->depth <= kMaxTreeDepth) return absl::OkStatus();
    return Error("the expression has too many parts: set some apart");
  }

  // Filters, tests and calls behind a value. A null value: of a block.
  absl::StatusOr<ExpressionPtr> ParseFilters(ExpressionPtr value) {
    while (true) {
      if (Skip("|")) {
        ASSIGN_OR_RETURN(value, ParseFilter(std::move(value)));
      } else if (value != nullptr && Skip("is")) {
        ASSIGN_OR_RETURN(value, ParseTest(std::move(value)));
      } else if (value != nullptr && IsOperator("(")) {
        ASSIGN_OR_RETURN(value, ParseCall(std::move(value)));
      } else {
        return value;
      }
    }
  }
  absl::StatusOr<ExpressionPtr> ParseFilter(ExpressionPtr value) {
    ExpressionPtr filter = New(Expression::Kind::kFilter);
    ASSIGN_OR_RETURN(filter->text, ExpectName());
    RETURN_IF_ERROR(AddChild(filter.get(), std::move(value)));
    if (IsOperator("(")) RETURN_IF_ERROR(ParseArguments(filter.get()));
    return filter;
  }
  absl::StatusOr<ExpressionPtr> ParseTest(ExpressionPtr value) {
    ExpressionPtr test = New(Expression::Kind::kTest);
    test->negated = Skip("not");
    ASSIGN_OR_RETURN(test->text, ExpectName());
    RETURN_IF_ERROR(AddChild(test.get(), std::move(value)));
    const Token& token = Now();
    if (IsOperator("(")) {
      RETURN_IF_ERROR(ParseArguments(test.get()));
      return test;
    }
    const bool is_word =
        token.kind == Token::Kind::kName && token.text != "else" &&
        token.text != "or" && token.text != "and" && token.text != "is" &&
        token.text != "if" && token.text != "in" && token.text != "not";
    if (is_word || token.kind == Token::Kind::kString ||
        token.kind == Token::Kind::kInteger ||
        token.kind == Token::Kind::kFloat || IsOperator("[") ||
        IsOperator("{")) {
      ASSIGN_OR_RETURN(ExpressionPtr argument, ParsePrimary());
      ASSIGN_OR_RETURN(argument, ParsePostfix(std::move(argument)));
      test->depth = std::max(test->depth, argument->depth + 1);
      test->arguments.push_back(std::move(argument));
    }
    return test;
  }

 private:
  const std::vector<Token> tokens_;
  size_t at_ = 0;
  int32_t expression_depth_ = 0;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_CHAT_TEMPLATE_EXPRESSIONS_H_
