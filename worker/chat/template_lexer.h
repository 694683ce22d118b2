// Cuts a template into text and the tokens of its tags, with the white space
// that Hugging Face's settings drop: trim_blocks, lstrip_blocks, and `-` in
// tags.

#ifndef MILLRACE_WORKER_CHAT_TEMPLATE_LEXER_H_
#define MILLRACE_WORKER_CHAT_TEMPLATE_LEXER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace millrace {

struct TemplateToken {
  enum class Kind : uint8_t {
    kText,  // Between tags.
    kPrintBegin,
    kPrintEnd,
    kBlockBegin,
    kBlockEnd,
    kName,
    kString,  // With escapes replaced.
    kInteger,
    kFloat,
    kOperator,
    kEnd,
  };
  Kind kind;
  std::string text;
  int32_t line;  // The first is 1.
};

// The last token is kEnd. InvalidArgument "LINE: what is wrong".
absl::StatusOr<std::vector<TemplateToken>> LexTemplate(
    absl::string_view source);

}  // namespace millrace

#endif  // MILLRACE_WORKER_CHAT_TEMPLATE_LEXER_H_
