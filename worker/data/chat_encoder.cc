#include "worker/data/chat_encoder.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "base/units.h"

namespace millrace {
namespace {

using Columns = nlohmann::ordered_json;

TrainOn TrainOnByKey(const std::string& key) {
  if (key == "completion") return TrainOn::kCompletion;
  if (key == "all") return TrainOn::kAll;
  CHECK(key == "assistant") << key;
  return TrainOn::kAssistant;
}

// Gives the messages in `column` the name that records usually have for them.
absl::Status RenameMessages(const std::string& column, Columns* record) {
  const auto found = record->find(column);
  if (found == record->end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected a column `", column,
                     "` with messages, as `column` of the source says, found "
                     "none"));
  }
  Columns messages = std::move(*found);
  const bool is_share_gpt = messages.is_array() && !messages.empty() &&
                            messages[0].is_object() &&
                            messages[0].contains("from");
  for (const char* usual :
       {"messages", "conversations", "prompt", "completion"}) {
    record->erase(usual);
  }
  (*record)[is_share_gpt ? "conversations" : "messages"] = std::move(messages);
  return absl::OkStatus();
}

}  // namespace

void RemoveNulls(nlohmann::ordered_json* value) {
  if (value->is_array()) {
    for (nlohmann::ordered_json& item : *value) RemoveNulls(&item);
  }
  if (!value->is_object()) return;
  // Erasing a field moves all behind it.
  nlohmann::ordered_json::object_t kept;
  for (auto& [key, field] :
       value->get_ref<nlohmann::ordered_json::object_t&>()) {
    RemoveNulls(&field);
    if (field.is_null() && key != "content") continue;
    kept.push_back({key, std::move(field)});
  }
  *value = std::move(kept);
}

absl::Status CheckChatRecordSize(const Record& record) {
  if (record.num_bytes() <= kMaxChatRecordBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "expected a record of at most ", FormatBytes(kMaxChatRecordBytes),
      ", found one of ", FormatBytes(record.num_bytes())));
}

ChatEncoder::ChatEncoder(const ChatEncoderOptions& options)
    : column_(options.column),
      options_{.tokenizer = options.tokenizer->json_tokenizer(),
               .chat_template = options.files->chat_template.get(),
               .variables = options.files->variables,
               .end_of_text = options.tokenizer->end_of_document(),
               .train_on = TrainOnByKey(options.train_on),
               .date = options.date} {
  CHECK(options_.tokenizer != nullptr);
}

std::vector<std::string> ChatEncoder::columns() const {
  if (!column_.empty()) return {column_, "tools", "documents"};
  return {"messages",   "conversations", "prompt",
          "completion", "tools",         "documents"};
}

void ChatEncoder::Encode(Record* record, EncodedRecord* encoded) const {
  const auto make = [&]() -> absl::StatusOr<ChatSample> {
    RETURN_IF_ERROR(CheckChatRecordSize(*record));
    ASSIGN_OR_RETURN(Columns columns, record->TakeColumns());
    if (record->place().format == RecordFormat::kParquet) RemoveNulls(&columns);
    if (!column_.empty()) RETURN_IF_ERROR(RenameMessages(column_, &columns));
    return MakeChatSample(columns, options_);
  };
  absl::StatusOr<ChatSample> sample = make();
  // A template that raises, or takes too long, does so for this record alone.
  if (!sample.ok()) {
    encoded->broken = std::string(sample.status().message());
    if (options_.date.empty() &&
        absl::StrContains(encoded->broken, "'strftime_now' is undefined")) {
      absl::StrAppend(&encoded->broken,
                      ": the template writes a date; give it one in "
                      "data.chat_date");
    }
    return;
  }
  encoded->is_empty = sample->tokens.empty();
  encoded->tokens = std::move(sample->tokens);
  encoded->trained = std::move(sample->trained);
}

}  // namespace millrace
