// Runs a template's tree over variables.

#ifndef MILLRACE_WORKER_CHAT_TEMPLATE_RUN_H_
#define MILLRACE_WORKER_CHAT_TEMPLATE_RUN_H_

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/chat/template_functions.h"
#include "worker/chat/template_syntax.h"
#include "worker/chat/template_value.h"

namespace millrace {

struct TemplateRunResult {
  std::string text;
  // Bytes of `text` that came from inside {% generation %}, in order.
  std::vector<std::pair<size_t, size_t>> generated;
};

// `variables` win over built-in names. strftime_now() is defined where `date`
// ("2026-11-23") is not empty. InvalidArgument or ResourceExhausted "LINE: what
// is wrong".
absl::StatusOr<TemplateRunResult> RunTemplate(const TemplateTree& tree,
                                              const TemplateDict& variables,
                                              const std::string& date,
                                              TemplateMeter& meter);

}  // namespace millrace

#endif  // MILLRACE_WORKER_CHAT_TEMPLATE_RUN_H_
