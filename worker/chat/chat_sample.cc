#include "worker/chat/chat_sample.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;

// Finding turns takes the text before each, so time grows with the square of
// their number: some ten seconds for a record.
constexpr size_t kMaxTextOfPrefixes = size_t{256} << 20;

absl::Status TooManyTurns() {
  return absl::ResourceExhaustedError(
      "a conversation of too many turns to find those of the assistant; mark "
      "them in the template by {% generation %}, train on completion (the last "
      "turn) or all, or cut the conversation");
}

struct Conversation {
  Json messages = Json::array();
  size_t num_prompt_messages = 0;  // Those that are never trained.
};

absl::Status CheckMessages(const Json& messages, const std::string& key) {
  if (!messages.is_array() || messages.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        key, ": expected a list of messages, found ",
        messages.is_array() ? "an empty one" : messages.type_name()));
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    if (!messages[i].is_object() || !messages[i].contains("role") ||
        !messages[i]["role"].is_string()) {
      return absl::InvalidArgumentError(absl::StrCat(
          key, "[", i, "]: expected an object with a text in `role`"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Json> MessagesOfShareGpt(const Json& turns) {
  Json messages = Json::array();
  if (!turns.is_array()) {
    return absl::InvalidArgumentError("conversations: expected a list");
  }
  for (size_t i = 0; i < turns.size(); ++i) {
    const Json& turn = turns[i];
    const std::string place = absl::StrCat("conversations[", i, "]");
    if (!turn.is_object() || !turn.contains("from") ||
        !turn["from"].is_string() || !turn.contains("value")) {
      return absl::InvalidArgumentError(
          absl::StrCat(place, ": expected an object with `from` and `value`"));
    }
    const std::string from = turn["from"].get<std::string>();
    const char* role = from == "human" || from == "user"         ? "user"
                       : from == "gpt" || from == "assistant"    ? "assistant"
                       : from == "system"                        ? "system"
                       : from == "tool" || from == "observation" ? "tool"
                                                                 : nullptr;
    if (role == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(place,
                       ".from: expected human, gpt, system or tool, "
                       "found '",
                       from, "'"));
    }
    messages.push_back({{"role", role}, {"content", turn["value"]}});
  }
  return messages;
}

// The record's messages. Prompts and completions that are texts have none.
absl::StatusOr<Conversation> ReadConversation(const Json& record) {
  Conversation conversation;
  if (record.contains("messages")) {
    conversation.messages = record["messages"];
    RETURN_IF_ERROR(CheckMessages(conversation.messages, "messages"));
  } else if (record.contains("conversations")) {
    ASSIGN_OR_RETURN(conversation.messages,
                     MessagesOfShareGpt(record["conversations"]));
    RETURN_IF_ERROR(CheckMessages(conversation.messages, "conversations"));
  } else if (record.contains("prompt") && record.contains("completion")) {
    RETURN_IF_ERROR(CheckMessages(record["prompt"], "prompt"));
    RETURN_IF_ERROR(CheckMessages(record["completion"], "completion"));
    conversation.messages = record["prompt"];
    conversation.num_prompt_messages = conversation.messages.size();
    for (const Json& message : record["completion"]) {
      conversation.messages.push_back(message);
    }
  } else {
    return absl::InvalidArgumentError(
        "expected a record with `messages`, `conversations`, or `prompt` and "
        "`completion`, found none of them");
  }
  return conversation;
}

bool IsTextPair(const Json& record) {
  return !record.contains("messages") && !record.contains("conversations") &&
         record.contains("prompt") && record["prompt"].is_string() &&
         record.contains("completion") && record["completion"].is_string();
}

// Renders prefixes of a conversation.
class ConversationText {
 public:
  ConversationText(const Json& record, const Conversation& conversation,
                   const ChatSampleOptions& options)
      : conversation_(conversation), options_(options) {
    variables_ = options.variables;
    for (const char* key : {"tools", "documents"}) {
      variables_[key] = record.contains(key) ? record[key] : Json();
    }
  }

  absl::StatusOr<RenderedChat> Render(size_t num_messages, bool asks_for_more) {
    Json& messages = variables_["messages"];
    messages = Json::array();
    for (size_t i = 0; i < num_messages; ++i) {
      messages.push_back(conversation_.messages[i]);
    }
    variables_["add_generation_prompt"] = asks_for_more;
    ASSIGN_OR_RETURN(RenderedChat chat,
                     options_.chat_template->Render(variables_, options_.date));
    text_of_prefixes_ += chat.text.size();
    if (text_of_prefixes_ > kMaxTextOfPrefixes) return TooManyTurns();
    return chat;
  }

  // The bytes of assistant's turn `idx` in `whole`.
  absl::StatusOr<std::pair<size_t, size_t>> FindTurn(size_t idx,
                                                     const std::string& whole) {
    ASSIGN_OR_RETURN(const RenderedChat before,
                     Render(idx, /*asks_for_more=*/true));
    const bool is_last = idx + 1 == conversation_.messages.size();
    std::string turn_end = whole;
    if (!is_last) {
      ASSIGN_OR_RETURN(RenderedChat with,
                       Render(idx + 1, /*asks_for_more=*/false));
      turn_end = std::move(with.text);
    }
    if (!absl::StartsWith(whole, before.text) ||
        !absl::StartsWith(whole, turn_end) ||
        turn_end.size() < before.text.size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the chat template writes message ", idx + 1,
          " in another way when more messages follow, or asks for it in "
          "another way, so its trained text cannot be told: mark it in the "
          "template by {% generation %}, or train on ",
          is_last ? "all" : "completion (the last turn) or all"));
    }
    const size_t end = static_cast<size_t>(
        absl::StripTrailingAsciiWhitespace(turn_end).size());
    return std::make_pair(before.text.size(),
                          std::max(before.text.size(), end));
  }

 private:
  const Conversation& conversation_;
  const ChatSampleOptions& options_;
  Json variables_;
  size_t text_of_prefixes_ = 0;
};

using Spans = std::vector<std::pair<size_t, size_t>>;

absl::Status AppendIds(const JsonTokenizer& tokenizer, absl::string_view text,
                       std::vector<int32_t>* ids) {
  return tokenizer.Encode(text, /*add_special_tokens=*/false, ids);
}

// The tokens of `text`, marked where they lie in `spans`. Tokens are those of
// the whole text. A token that begins before a span and ends in it is trained;
// one that reaches beyond the span's end is not.
absl::StatusOr<ChatSample> Tokenize(const JsonTokenizer& tokenizer,
                                    const std::string& text,
                                    const Spans& spans) {
  ChatSample sample;
  RETURN_IF_ERROR(AppendIds(tokenizer, text, &sample.tokens));
  sample.trained.assign(sample.tokens.size(), 0);
  // Mostly the parts between borders have the tokens of the whole.
  std::vector<int32_t> parts;
  std::vector<size_t> borders;
  size_t at = 0;
  for (const auto& [begin, end] : spans) {
    for (const size_t border : {begin, end}) {
      RETURN_IF_ERROR(AppendIds(
          tokenizer, absl::string_view(text).substr(at, border - at), &parts));
      borders.push_back(parts.size());
      at = border;
    }
  }
  RETURN_IF_ERROR(
      AppendIds(tokenizer, absl::string_view(text).substr(at), &parts));
  if (parts != sample.tokens) {
    // A border is where the tokens of the text before it part from the whole's.
    borders.clear();
    size_t text_of_prefixes = 0;
    for (const auto& [begin, end] : spans) {
      for (const size_t border : {begin, end}) {
        text_of_prefixes += border;
        if (text_of_prefixes > kMaxTextOfPrefixes) return TooManyTurns();
        std::vector<int32_t> before;
        RETURN_IF_ERROR(AppendIds(
            tokenizer, absl::string_view(text).substr(0, border), &before));
        const auto differs =
            std::mismatch(before.begin(), before.end(), sample.tokens.begin(),
                          sample.tokens.end());
        borders.push_back(static_cast<size_t>(differs.first - before.begin()));
      }
    }
  }
  for (size_t i = 0; i + 1 < borders.size(); i += 2) {
    for (size_t k = borders[i]; k < borders[i + 1]; ++k) sample.trained[k] = 1;
  }
  return sample;
}

// A prompt and a completion that are texts: the tokenizer's begin token, both,
// and the token that ends a text.
absl::StatusOr<ChatSample> MakeTextPair(const Json& record,
                                        const ChatSampleOptions& options) {
  const auto prompt = record["prompt"].get<std::string>();
  const std::string text =
      absl::StrCat(prompt, record["completion"].get<std::string>());
  ASSIGN_OR_RETURN(
      const ChatSample pair,
      Tokenize(*options.tokenizer, text,
               {{options.train_on == TrainOn::kAll ? 0 : prompt.size(),
                 text.size()}}));
  ChatSample sample;
  RETURN_IF_ERROR(options.tokenizer->Encode("", /*add_special_tokens=*/true,
                                            &sample.tokens));
  while (!sample.tokens.empty() &&
         sample.tokens.back() == options.end_of_text) {
    sample.tokens.pop_back();
  }
  sample.trained.assign(sample.tokens.size(), 0);
  sample.tokens.insert(sample.tokens.end(), pair.tokens.begin(),
                       pair.tokens.end());
  sample.trained.insert(sample.trained.end(), pair.trained.begin(),
                        pair.trained.end());
  if (options.end_of_text >= 0) {
    sample.tokens.push_back(options.end_of_text);
    sample.trained.push_back(1);
  }
  return sample;
}

}  // namespace

absl::StatusOr<RenderedChat> RenderTrained(const nlohmann::ordered_json& record,
                                           const ChatSampleOptions& options) {
  if (!record.is_object()) {
    return absl::InvalidArgumentError("expected an object");
  }
  if (options.chat_template == nullptr) {
    return absl::InvalidArgumentError(
        "messages need a chat template, and the tokenizer has none: name one "
        "in data.chat_template, or put chat_template.jinja beside "
        "tokenizer.json");
  }
  ASSIGN_OR_RETURN(const Conversation conversation, ReadConversation(record));
  const Json& messages = conversation.messages;
  ConversationText text(record, conversation, options);
  ASSIGN_OR_RETURN(RenderedChat whole,
                   text.Render(messages.size(), /*asks_for_more=*/false));
  if (options.train_on == TrainOn::kAll) {
    whole.generated = {{0, whole.text.size()}};
    return whole;
  }
  size_t first = conversation.num_prompt_messages;
  if (options.train_on == TrainOn::kCompletion && first == 0) {
    first = messages.size() - 1;
  }
  if (options.chat_template->marks_generation()) {
    if (first == 0) return whole;
    // Text that the messages before it generate stays untrained.
    ASSIGN_OR_RETURN(const RenderedChat before,
                     text.Render(first, /*asks_for_more=*/false));
    const size_t num_before = before.generated.size();
    if (num_before > whole.generated.size()) {
      return absl::InvalidArgumentError(
          "the chat template generates less when more messages follow");
    }
    whole.generated.erase(
        whole.generated.begin(),
        whole.generated.begin() + static_cast<std::ptrdiff_t>(num_before));
    return whole;
  }
  whole.generated.clear();
  for (size_t i = first; i < messages.size(); ++i) {
    if (messages[i]["role"] != "assistant") continue;
    ASSIGN_OR_RETURN(const auto span, text.FindTurn(i, whole.text));
    if (span.second > span.first) whole.generated.push_back(span);
  }
  return whole;
}

absl::StatusOr<ChatSample> MakeChatSample(const nlohmann::ordered_json& record,
                                          const ChatSampleOptions& options) {
  if (record.is_object() && IsTextPair(record)) {
    return MakeTextPair(record, options);
  }
  ASSIGN_OR_RETURN(const RenderedChat rendered, RenderTrained(record, options));
  return Tokenize(*options.tokenizer, rendered.text, rendered.generated);
}

}  // namespace millrace
