#include "worker/chat/template_syntax.h"

#include <algorithm>
#include <initializer_list>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/chat/template_expressions.h"
#include "worker/chat/template_lexer.h"

namespace millrace {
namespace {

using Node = TemplateNode;
using NodePtr = std::unique_ptr<Node>;

class TemplateParser : private TemplateExpressionParser {
 public:
  explicit TemplateParser(std::vector<TemplateToken> tokens)
      : TemplateExpressionParser(std::move(tokens)) {}

  absl::StatusOr<TemplateTree> Run() {
    ASSIGN_OR_RETURN(tree_.body, ParseNodes({}));
    return std::move(tree_);
  }

 private:
  // Up to a block that begins with one of `ends`, whose name is the current
  // token afterwards; up to the end of the template if there are none.
  absl::StatusOr<NodeList> ParseNodes(
      std::initializer_list<absl::string_view> ends) {
    NodeList nodes;
    if (++block_depth_ > kMaxTreeDepth) {
      return Error("blocks are nested too deep");
    }
    const int32_t first_line = Now().line;
    while (true) {
      const Token& token = Now();
      if (token.kind == Token::Kind::kEnd) {
        if (ends.size() == 0) break;
        return absl::InvalidArgumentError(absl::StrCat(
            first_line, ": a block without its '", *(ends.end() - 1), "'"));
      }
      if (token.kind == Token::Kind::kText) {
        nodes.push_back(NewNode(Node::Kind::kText));
        nodes.back()->text = token.text;
        Advance();
        continue;
      }
      if (token.kind == Token::Kind::kPrintBegin) {
        Advance();
        nodes.push_back(NewNode(Node::Kind::kPrint));
        ASSIGN_OR_RETURN(nodes.back()->expression, ParseTuple());
        RETURN_IF_ERROR(ExpectKind(Token::Kind::kPrintEnd, "}}"));
        continue;
      }
      Advance();  // The begin of a block.
      if (std::any_of(ends.begin(), ends.end(),
                      [&](absl::string_view end) { return IsName(end); })) {
        break;
      }
      ASSIGN_OR_RETURN(NodePtr node, ParseBlock());
      nodes.push_back(std::move(node));
    }
    --block_depth_;
    return nodes;
  }

  NodePtr NewNode(Node::Kind kind) const {
    auto node = std::make_unique<Node>();
    node->kind = kind;
    node->line = Now().line;
    return node;
  }

  absl::Status EndBlock() { return ExpectKind(Token::Kind::kBlockEnd, "%}"); }
  // The body of `node` up to the block `end`.
  absl::Status ParseBody(absl::string_view end, NodeList* body) {
    RETURN_IF_ERROR(EndBlock());
    ASSIGN_OR_RETURN(*body, ParseNodes({end}));
    Advance();
    return EndBlock();
  }

  absl::StatusOr<NodePtr> ParseBlock() {
    const std::string keyword =
        Now().kind == Token::Kind::kName ? Now().text : "";
    if (keyword == "if") return ParseIf();
    if (keyword == "for") return ParseFor();
    if (keyword == "set") return ParseSet();
    if (keyword == "macro") return ParseMacro();
    if (keyword == "call") return ParseCallBlock();
    if (keyword == "filter") return ParseFilterBlock();
    if (keyword == "with") return ParseWith();
    if (keyword == "generation") {
      NodePtr node = NewNode(Node::Kind::kGeneration);
      tree_.has_generation = true;
      Advance();
      RETURN_IF_ERROR(ParseBody("endgeneration", &node->body));
      return node;
    }
    if (keyword == "break" || keyword == "continue") {
      if (loop_depth_ == 0) {
        return Error(absl::StrCat("'", keyword, "' outside of a loop"));
      }
      NodePtr node = NewNode(keyword == "break" ? Node::Kind::kBreak
                                                : Node::Kind::kContinue);
      Advance();
      RETURN_IF_ERROR(EndBlock());
      return node;
    }
    return Error(absl::StrCat("the block ", Found(), " is not supported"));
  }

  absl::StatusOr<NodePtr> ParseIf() {
    NodePtr node = NewNode(Node::Kind::kIf);
    do {
      Advance();  // if, elif
      Node::Branch branch;
      ASSIGN_OR_RETURN(branch.condition, ParseTuple());
      RETURN_IF_ERROR(EndBlock());
      ASSIGN_OR_RETURN(branch.body, ParseNodes({"elif", "else", "endif"}));
      node->branches.push_back(std::move(branch));
    } while (IsName("elif"));
    if (Skip("else")) return ParseOtherwise("endif", std::move(node));
    Advance();
    RETURN_IF_ERROR(EndBlock());
    return node;
  }
  absl::StatusOr<NodePtr> ParseOtherwise(absl::string_view end, NodePtr node) {
    RETURN_IF_ERROR(ParseBody(end, &node->otherwise));
    return node;
  }

  absl::Status ParseTargets(Node* node) {
    const bool parenthesized = Skip("(");
    while (true) {
      ASSIGN_OR_RETURN(std::string name, ExpectName());
      node->targets.push_back(std::move(name));
      if (!Skip(",")) break;
      node->unpacks = true;
      if (IsOperator(")") || IsOperator("=") || IsName("in")) break;
    }
    return parenthesized ? Expect(")") : absl::OkStatus();
  }

  absl::StatusOr<NodePtr> ParseFor() {
    NodePtr node = NewNode(Node::Kind::kFor);
    Advance();
    RETURN_IF_ERROR(ParseTargets(node.get()));
    RETURN_IF_ERROR(Expect("in"));
    ASSIGN_OR_RETURN(node->expression, ParseTuple(/*with_choice=*/false));
    if (Skip("if")) {
      ASSIGN_OR_RETURN(node->condition, ParseExpression());
    }
    node->recursive = Skip("recursive");
    RETURN_IF_ERROR(EndBlock());
    ++loop_depth_;
    ASSIGN_OR_RETURN(node->body, ParseNodes({"else", "endfor"}));
    --loop_depth_;
    if (Skip("else")) return ParseOtherwise("endfor", std::move(node));
    Advance();
    RETURN_IF_ERROR(EndBlock());
    return node;
  }

  absl::StatusOr<NodePtr> ParseSet() {
    NodePtr node = NewNode(Node::Kind::kSet);
    Advance();
    if (Now().kind == Token::Kind::kName &&
        Next().kind == Token::Kind::kOperator && Next().text == ".") {
      node->text = Now().text;
      Advance();
      Advance();
      ASSIGN_OR_RETURN(node->attribute, ExpectName());
    } else {
      RETURN_IF_ERROR(ParseTargets(node.get()));
    }
    if (Skip("=")) {
      ASSIGN_OR_RETURN(node->expression, ParseTuple());
      RETURN_IF_ERROR(EndBlock());
      return node;
    }
    node->kind = Node::Kind::kSetBlock;
    if (node->targets.size() > 1) {
      return Error(absl::StrCat("expected '=', found ", Found()));
    }
    if (IsOperator("|")) {
      ASSIGN_OR_RETURN(node->expression, ParseFilters(nullptr));
    }
    RETURN_IF_ERROR(ParseBody("endset", &node->body));
    return node;
  }

  absl::Status ParseParameters(Node* node) {
    RETURN_IF_ERROR(Expect("("));
    while (!Skip(")")) {
      if (!node->parameters.empty()) {
        RETURN_IF_ERROR(Expect(","));
        if (Skip(")")) break;
      }
      ASSIGN_OR_RETURN(std::string name, ExpectName());
      ExpressionPtr value;
      if (Skip("=")) {
        ASSIGN_OR_RETURN(value, ParseExpression());
      }
      node->parameters.emplace_back(std::move(name), std::move(value));
    }
    return absl::OkStatus();
  }
  void NoteMacro(Node* node) {
    node->macro_idx = static_cast<int64_t>(tree_.macros.size());
    tree_.macros.push_back(node);
  }
  // A loop around a macro is not the macro's own.
  absl::Status ParseMacroBody(absl::string_view end, Node* node) {
    const int32_t loop_depth = std::exchange(loop_depth_, 0);
    RETURN_IF_ERROR(ParseBody(end, &node->body));
    loop_depth_ = loop_depth;
    return absl::OkStatus();
  }

  absl::StatusOr<NodePtr> ParseMacro() {
    NodePtr node = NewNode(Node::Kind::kMacro);
    Advance();
    ASSIGN_OR_RETURN(node->text, ExpectName());
    RETURN_IF_ERROR(ParseParameters(node.get()));
    NoteMacro(node.get());
    RETURN_IF_ERROR(ParseMacroBody("endmacro", node.get()));
    return node;
  }

  absl::StatusOr<NodePtr> ParseCallBlock() {
    NodePtr node = NewNode(Node::Kind::kCallBlock);
    node->text = "caller";
    Advance();
    if (IsOperator("(")) RETURN_IF_ERROR(ParseParameters(node.get()));
    ASSIGN_OR_RETURN(node->expression, ParseExpression());
    if (node->expression->kind != Expression::Kind::kCall) {
      return Error("'call' needs a call");
    }
    NoteMacro(node.get());
    RETURN_IF_ERROR(ParseMacroBody("endcall", node.get()));
    return node;
  }

  absl::StatusOr<NodePtr> ParseFilterBlock() {
    NodePtr node = NewNode(Node::Kind::kFilter);
    Advance();
    ASSIGN_OR_RETURN(ExpressionPtr first, ParseFilter(nullptr));
    ASSIGN_OR_RETURN(node->expression, ParseFilters(std::move(first)));
    RETURN_IF_ERROR(ParseBody("endfilter", &node->body));
    return node;
  }

  absl::StatusOr<NodePtr> ParseWith() {
    NodePtr node = NewNode(Node::Kind::kWith);
    Advance();
    while (Now().kind == Token::Kind::kName) {
      ASSIGN_OR_RETURN(std::string name, ExpectName());
      RETURN_IF_ERROR(Expect("="));
      ASSIGN_OR_RETURN(ExpressionPtr value, ParseExpression());
      node->parameters.emplace_back(std::move(name), std::move(value));
      if (!Skip(",")) break;
    }
    RETURN_IF_ERROR(ParseBody("endwith", &node->body));
    return node;
  }

  int32_t block_depth_ = 0;
  int32_t loop_depth_ = 0;
  TemplateTree tree_;
};

}  // namespace

absl::StatusOr<TemplateTree> ParseTemplate(absl::string_view source) {
  ASSIGN_OR_RETURN(std::vector<TemplateToken> tokens, LexTemplate(source));
  return TemplateParser(std::move(tokens)).Run();
}

}  // namespace millrace
