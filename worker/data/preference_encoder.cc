#include "worker/data/preference_encoder.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace millrace {
namespace {

using PairRecord = nlohmann::ordered_json;
constexpr const char* kAnswers[] = {"chosen", "rejected"};

absl::Status CheckAnswers(const PairRecord& record) {
  for (const char* answer : kAnswers) {
    if (!record.contains(answer)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "expected `chosen` and `rejected`, and `prompt` unless both are "
          "whole conversations; found no `",
          answer, "`"));
    }
    const PairRecord& value = record[answer];
    if (!value.is_string() && !(value.is_array() && !value.empty())) {
      return absl::InvalidArgumentError(absl::StrCat(
          "`", answer, "`: expected a text or a list of messages"));
    }
  }
  if (record["chosen"].is_string() != record["rejected"].is_string()) {
    return absl::InvalidArgumentError(
        "expected `chosen` and `rejected` alike: two texts, or two lists of "
        "messages");
  }
  return absl::OkStatus();
}

// Whether the answers are conversations from their first message on. Some data
// sets repeat the prompt beside them, as a text or as messages.
bool AreConversations(const PairRecord& record) {
  const PairRecord& chosen = record["chosen"];
  if (!chosen.is_array()) return false;
  if (!record.contains("prompt")) return true;
  const PairRecord& prompt = record["prompt"];
  if (prompt.is_array()) {
    return !prompt.empty() && chosen.size() > prompt.size() &&
           std::equal(prompt.begin(), prompt.end(), chosen.begin());
  }
  const PairRecord& first = chosen.front();
  return prompt.is_string() && first.is_object() &&
         first.value("role", PairRecord()) != "assistant";
}

// Moves the messages that both conversations begin with into `prompt`.
absl::Status TakePrompt(PairRecord* record) {
  PairRecord& chosen = (*record)["chosen"];
  PairRecord& rejected = (*record)["rejected"];
  const auto differs = std::mismatch(chosen.begin(), chosen.end(),
                                     rejected.begin(), rejected.end());
  const auto num_common = std::distance(chosen.begin(), differs.first);
  if (num_common == 0) {
    return absl::InvalidArgumentError(
        "`chosen` and `rejected` begin with different messages, so they answer "
        "no common prompt");
  }
  PairRecord prompt = PairRecord::array();
  for (auto i = chosen.begin(); i != differs.first; ++i) prompt.push_back(*i);
  for (const char* answer : kAnswers) {
    PairRecord& messages = (*record)[answer];
    messages.erase(messages.begin(), messages.begin() + num_common);
    if (messages.empty()) {
      return absl::InvalidArgumentError(
          "`chosen` and `rejected` say the same, or one is the other's begin");
    }
  }
  (*record)["prompt"] = std::move(prompt);
  return absl::OkStatus();
}

absl::Status AddAnswer(const PairRecord& record, const char* answer,
                       const ChatSampleOptions& options,
                       EncodedRecord* encoded) {
  // Other columns, `messages` among them, would be taken for the conversation.
  PairRecord of_answer = PairRecord::object();
  for (const char* shared : {"prompt", "tools", "documents"}) {
    if (record.contains(shared)) of_answer[shared] = record[shared];
  }
  of_answer["completion"] = record[answer];
  ASSIGN_OR_RETURN(const ChatSample sample, MakeChatSample(of_answer, options));
  // The first token of a sample is nobody's target.
  if (sample.trained.empty() ||
      std::none_of(sample.trained.begin() + 1, sample.trained.end(),
                   [](uint8_t trained) { return trained == 1; })) {
    return absl::InvalidArgumentError(absl::StrCat(
        "`", answer, "` has no token to train: expected a message of the role ",
        "assistant, or a text that is not empty"));
  }
  encoded->tokens.insert(encoded->tokens.end(), sample.tokens.begin(),
                         sample.tokens.end());
  encoded->trained.insert(encoded->trained.end(), sample.trained.begin(),
                          sample.trained.end());
  return absl::OkStatus();
}

}  // namespace

PreferenceEncoder::PreferenceEncoder(const ChatEncoderOptions& options)
    : options_{.tokenizer = options.tokenizer->json_tokenizer(),
               .chat_template = options.files->chat_template.get(),
               .variables = options.files->variables,
               .end_of_text = options.tokenizer->end_of_document(),
               .train_on = TrainOn::kCompletion,
               .date = options.date} {
  CHECK(options_.tokenizer != nullptr);
}

std::vector<std::string> PreferenceEncoder::columns() const {
  return {"prompt", "chosen", "rejected", "tools", "documents"};
}

void PreferenceEncoder::Encode(Record* record, EncodedRecord* encoded) const {
  const auto encode = [&]() -> absl::Status {
    RETURN_IF_ERROR(CheckChatRecordSize(*record));
    ASSIGN_OR_RETURN(PairRecord columns, record->TakeColumns());
    RemoveNulls(&columns);
    RETURN_IF_ERROR(CheckAnswers(columns));
    if (AreConversations(columns)) {
      RETURN_IF_ERROR(TakePrompt(&columns));
    } else if (!columns.contains("prompt")) {
      return absl::InvalidArgumentError(
          "expected `prompt` beside `chosen` and `rejected` that are texts");
    }
    RETURN_IF_ERROR(AddAnswer(columns, "chosen", options_, encoded));
    encoded->num_chosen_tokens = encoded->tokens.size();
    return AddAnswer(columns, "rejected", options_, encoded);
  };
  if (const absl::Status status = encode(); !status.ok()) {
    encoded->broken = std::string(status.message());
  }
}

}  // namespace millrace
