// A model's folder with a tokenizer and a template, and conversations, for
// tests.

#ifndef MILLRACE_TESTS_WORKER_DATA_CHAT_DATA_H_
#define MILLRACE_TESTS_WORKER_DATA_CHAT_DATA_H_

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/files.h"

namespace millrace {

constexpr int64_t kChatVocabSize = 704;  // The tokenizer's.

// tokenizer.json, tokenizer_config.json and chat_template.jinja in `folder`,
// which exists.
inline void WriteChatTokenizer(const std::string& folder,
                               const std::string& template_name = "chatml") {
  const auto copy = [&](const std::string& from, const std::string& name) {
    CHECK(WriteFileAtomically(folder + "/" + name, *ReadFile(from)).ok());
  };
  copy("tests/data/tokenizers/qwen2.json", "tokenizer.json");
  copy(absl::StrCat("tests/data/chat_templates/", template_name, ".jinja"),
       "chat_template.jinja");
  CHECK(WriteFileAtomically(folder + "/tokenizer_config.json",
                            "{\"eos_token\": \"<|im_end|>\"}")
            .ok());
}

// A line of JSON: a question about number `i`, longer for larger i % 5.
inline std::string ChatLine(int i) {
  std::string question = absl::StrCat("What is ", i, " + ", i % 7, "?");
  for (int k = 0; k < i % 5; ++k) absl::StrAppend(&question, " Think.");
  return absl::StrCat(
      "{\"messages\": [{\"role\": \"user\", \"content\": \"", question,
      "\"}, {\"role\": \"assistant\", \"content\": \"", i + i % 7, ".\"}]}\n");
}

inline std::string ChatLines(int begin, int end) {
  std::string lines;
  for (int i = begin; i < end; ++i) lines += ChatLine(i);
  return lines;
}

}  // namespace millrace

#endif  // MILLRACE_TESTS_WORKER_DATA_CHAT_DATA_H_
