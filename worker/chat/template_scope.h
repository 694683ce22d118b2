// The names, loops and calls of a template's run.

#ifndef MILLRACE_WORKER_CHAT_TEMPLATE_SCOPE_H_
#define MILLRACE_WORKER_CHAT_TEMPLATE_SCOPE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "worker/chat/template_functions.h"
#include "worker/chat/template_syntax.h"
#include "worker/chat/template_value.h"

namespace millrace {

// The state that `loop` shows.
struct TemplateLoop {
  const TemplateList* items = nullptr;
  size_t idx = 0;
  int64_t depth = 0;
  const TemplateNode* node = nullptr;
  TemplateValue last_changed = {};
  bool has_changed = false;
};

// Puts "LINE: " before an error, unless it has the line of something inside.
inline absl::Status AtTemplateLine(int32_t line, const absl::Status& status) {
  const absl::string_view message = status.message();
  const size_t colon = message.find(": ");
  const bool has_line =
      colon != absl::string_view::npos && colon > 0 &&
      std::all_of(message.begin(), message.begin() + colon,
                  [](char c) { return c >= '0' && c <= '9'; });
  if (has_line) return status;
  return absl::Status(status.code(), absl::StrCat(line, ": ", message));
}

struct TemplateScope {
  std::vector<std::pair<std::string, TemplateValue>> names = {};
  TemplateLoop* loop = nullptr;
  // A scope that sees only itself, those above it, and the first.
  bool begins_function = false;

  const TemplateValue* Find(const std::string& name) const {
    for (const auto& [known, value] : names) {
      if (known == name) return &value;
    }
    return nullptr;
  }
};

// InvalidArgument for arguments that the macro does not take.
inline absl::Status CheckMacroArguments(const TemplateNode& macro,
                                        const TemplateArguments& args) {
  const auto& parameters = macro.parameters;
  if (args.positional.size() > parameters.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("macro '", macro.text, "' takes at most ",
                     parameters.size(), " arguments"));
  }
  for (const auto& [name, value] : args.named) {
    if (std::none_of(parameters.begin(), parameters.end(),
                     [&](const auto& p) { return p.first == name; })) {
      return absl::InvalidArgumentError(absl::StrCat(
          "macro '", macro.text, "' has no argument '", name, "'"));
    }
  }
  return absl::OkStatus();
}

}  // namespace millrace

#endif  // MILLRACE_WORKER_CHAT_TEMPLATE_SCOPE_H_
