// The tree of a template, and the parser that makes it. Precedence is Jinja's:
// filters and tests bind before signs and arithmetic, `~` before `+`.

#ifndef MILLRACE_WORKER_CHAT_TEMPLATE_SYNTAX_H_
#define MILLRACE_WORKER_CHAT_TEMPLATE_SYNTAX_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/chat/template_value.h"

namespace millrace {

struct TemplateExpression;
using ExpressionPtr = std::unique_ptr<TemplateExpression>;

struct TemplateExpression {
  enum class Kind : uint8_t {
    kLiteral,
    kName,       // text
    kList,       // children
    kTuple,      // children
    kDict,       // children: key, value, key, value
    kAttribute,  // children[0].text
    kIndex,      // children[0][children[1]]
    kSlice,      // children[0][c1:c2:c3]; null where not given
    kCall,       // children[0](arguments)
    kFilter,     // children[0] | text(arguments); null in a filter block
    kTest,       // children[0] is text(arguments)
    kUnary,      // text: - + not
    kBinary,     // text: an operator of arithmetic, ~, and, or
    kCompare,    // children[0] operators[0] children[1] operators[1] ...
    kChoice,     // children[0] if children[1] else children[2], may be null
  };
  Kind kind = Kind::kLiteral;
  int32_t line = 0;
  int32_t depth = 1;  // Depth of the tree below.
  bool negated = false;
  std::string text;
  TemplateValue value;
  std::vector<ExpressionPtr> children;
  std::vector<std::string> operators;
  // Arguments of a call, filter or test: those by position, then those by name.
  std::vector<ExpressionPtr> arguments;
  std::vector<std::pair<std::string, ExpressionPtr>> named_arguments;
};

struct TemplateNode;
using NodeList = std::vector<std::unique_ptr<TemplateNode>>;

struct TemplateNode {
  enum class Kind : uint8_t {
    kText,        // text
    kPrint,       // expression
    kIf,          // branches, otherwise
    kFor,         // targets in expression if condition: body, otherwise
    kSet,         // targets (or text.attribute) = expression
    kSetBlock,    // targets[0] = body, through the filters of expression
    kMacro,       // text(parameters): body
    kCallBlock,   // expression, a call, with body as caller()
    kFilter,      // body through the filters of expression
    kGeneration,  // body
    kWith,        // parameters in body
    kBreak,
    kContinue,
  };
  struct Branch {
    ExpressionPtr condition;
    NodeList body;
  };
  Kind kind = Kind::kText;
  int32_t line = 0;
  std::string text;
  std::string attribute;
  ExpressionPtr expression;
  ExpressionPtr condition;
  std::vector<std::string> targets;
  bool unpacks = false;    // Several targets, from one value each.
  bool recursive = false;  // A loop that may call itself.
  std::vector<Branch> branches;
  NodeList body;
  NodeList otherwise;
  // Names and defaults; null where there is none.
  std::vector<std::pair<std::string, ExpressionPtr>> parameters;
  int64_t macro_idx = -1;
};

struct TemplateTree {
  NodeList body;
  std::vector<const TemplateNode*> macros;  // By macro_idx.
  bool has_generation = false;
};

// InvalidArgument "LINE: what is wrong".
absl::StatusOr<TemplateTree> ParseTemplate(absl::string_view source);

}  // namespace millrace

#endif  // MILLRACE_WORKER_CHAT_TEMPLATE_SYNTAX_H_
