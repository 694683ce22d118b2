// Turns a record of chat data into tokens, and says which of them are trained.
//
// A record has one of:
//   messages: [{role, content, ...}], and perhaps tools
//   conversations: [{from: human | gpt | system, value}], as ShareGPT has them
//   prompt, completion: two texts, or two lists of messages
//
// By default, the text of assistants is trained. Where the template marks text
// by {% generation %}, the marked text is trained instead. Otherwise an
// assistant's turn is the part of the whole text after the text of the messages
// before it with the generation prompt, which the model would be asked to
// continue. White space behind a turn is not trained. A template whose text of
// a turn depends on later turns is refused, since no text would be the turn's
// own.

#ifndef MILLRACE_WORKER_CHAT_CHAT_SAMPLE_H_
#define MILLRACE_WORKER_CHAT_CHAT_SAMPLE_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/json.h"
#include "worker/chat/chat_template.h"
#include "worker/tokenize/json_tokenizer.h"

namespace millrace {

enum class TrainOn : uint8_t {
  kAssistant,   // All that assistants say, and completions.
  kCompletion,  // The last turn, and completions.
  kAll,         // Every token but the first.
};

struct ChatSampleOptions {
  const JsonTokenizer* tokenizer;  // Borrowed.
  // Borrowed; null if the tokenizer brings none: then only prompts and
  // completions that are texts can be read.
  const ChatTemplate* chat_template = nullptr;
  // Variables that templates see beside the messages: bos_token and so on.
  nlohmann::ordered_json variables = nlohmann::ordered_json::object();
  int32_t end_of_text = -1;  // Behind a completion that is a text, trained.
  TrainOn train_on = TrainOn::kAssistant;
  std::string date;  // For ChatTemplate::Render().
};

struct ChatSample {
  std::vector<int32_t> tokens;
  std::vector<uint8_t> trained;  // One a token: 0 or 1.
};

// The text of a record's conversation, with the bytes that are trained.
absl::StatusOr<RenderedChat> RenderTrained(const nlohmann::ordered_json& record,
                                           const ChatSampleOptions& options);

// InvalidArgument says what is wrong with the record, or what the template
// said; the caller adds file and line.
absl::StatusOr<ChatSample> MakeChatSample(const nlohmann::ordered_json& record,
                                          const ChatSampleOptions& options);

}  // namespace millrace

#endif  // MILLRACE_WORKER_CHAT_CHAT_SAMPLE_H_
