// Finds the chat template and the special tokens that lie beside a
// tokenizer.json.

#ifndef MILLRACE_WORKER_CHAT_CHAT_FILES_H_
#define MILLRACE_WORKER_CHAT_CHAT_FILES_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/json.h"
#include "worker/chat/chat_template.h"

namespace millrace {

struct ChatFiles {
  std::unique_ptr<ChatTemplate> chat_template;  // Null: there is none.
  // bos_token, eos_token and so on, as templates see them.
  nlohmann::ordered_json variables = nlohmann::ordered_json::object();
  // Everything above as one text, for keys of caches.
  std::string content;
};

// Reads the template `template_path`; if that is empty, chat_template.jinja,
// else chat_template of tokenizer_config.json: a text, or a list of named ones
// of which `default` is taken. special_tokens_map.json gives tokens that
// tokenizer_config.json does not. InvalidArgument or NotFound name the file and
// its key.
absl::StatusOr<ChatFiles> ReadChatFiles(const std::string& folder,
                                        const std::string& template_path = "");

}  // namespace millrace

#endif  // MILLRACE_WORKER_CHAT_CHAT_FILES_H_
