#include "worker/data/choice_records.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status_macros.h"

namespace millrace {
namespace {

using Json = nlohmann::json;

absl::StatusOr<std::vector<int32_t>> TokensOf(const Tokenizer& tokenizer,
                                              const std::string& text) {
  std::vector<int32_t> tokens;
  RETURN_IF_ERROR(tokenizer.EncodeDocument(text, &tokens));
  tokens.pop_back();  // The end of the document.
  return tokens;
}

absl::StatusOr<TokenSequence> SequenceOf(const Tokenizer& tokenizer,
                                         const std::string& context,
                                         const std::string& choice,
                                         int64_t sequence_length) {
  ASSIGN_OR_RETURN(const std::vector<int32_t> before,
                   TokensOf(tokenizer, context));
  TokenSequence sequence;
  ASSIGN_OR_RETURN(sequence.tokens, TokensOf(tokenizer, context + choice));
  const auto common =
      std::mismatch(before.begin(), before.end(), sequence.tokens.begin(),
                    sequence.tokens.end())
          .second;
  sequence.num_context = common - sequence.tokens.begin();
  const auto length = static_cast<int64_t>(sequence.tokens.size());
  if (sequence.num_context == 0 || sequence.num_context == length) {
    return absl::InvalidArgumentError(
        absl::StrCat(sequence.num_context == 0 ? "context" : "a choice",
                     " adds no token; expected text"));
  }
  if (length - 1 > sequence_length) {
    return absl::InvalidArgumentError(absl::StrCat(
        "context and choice have ", length, " tokens, but the model's ",
        "sequences hold ", sequence_length,
        "; shorten the context, or raise model.sequence_length"));
  }
  return sequence;
}

absl::StatusOr<ChoiceRecord> RecordOf(const Json& json,
                                      const Tokenizer& tokenizer,
                                      int64_t sequence_length) {
  const auto context = json.find("context");
  const auto choices = json.find("choices");
  const auto answer = json.find("answer");
  if (context == json.end() || !context->is_string()) {
    return absl::InvalidArgumentError("expected \"context\" with a text");
  }
  if (choices == json.end() || !choices->is_array() || choices->size() < 2) {
    return absl::InvalidArgumentError(
        "expected \"choices\" with a list of at least two texts");
  }
  if (answer == json.end() || !answer->is_number_unsigned() ||
      answer->get<uint64_t>() >= choices->size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected \"answer\" with an index from 0 to ", choices->size() - 1));
  }
  ChoiceRecord record = {.answer = answer->get<size_t>()};
  for (const Json& choice : *choices) {
    if (!choice.is_string()) {
      return absl::InvalidArgumentError(
          "expected \"choices\" with a list of at least two texts");
    }
    ASSIGN_OR_RETURN(TokenSequence sequence,
                     SequenceOf(tokenizer, context->get<std::string>(),
                                choice.get<std::string>(), sequence_length));
    record.choices.push_back(std::move(sequence));
  }
  return record;
}

}  // namespace

absl::StatusOr<std::vector<ChoiceRecord>> ReadChoiceRecords(
    const std::string& path, const Tokenizer& tokenizer,
    int64_t sequence_length) {
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxRecordBytes));
  std::vector<ChoiceRecord> records;
  int64_t line_number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    ++line_number;
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    const absl::StatusOr<Json> json = ParseJson(line);
    const bool is_object = json.ok() && json->is_object();
    const absl::StatusOr<ChoiceRecord> record =
        is_object ? RecordOf(*json, tokenizer, sequence_length)
                  : absl::StatusOr<ChoiceRecord>(
                        absl::InvalidArgumentError("expected a JSON object"));
    if (!record.ok()) {
      return absl::Status(record.status().code(),
                          absl::StrCat(path, ":", line_number, ": ",
                                       record.status().message()));
    }
    records.push_back(*record);
  }
  if (records.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " holds no record; expected lines {\"context\": ",
                     "TEXT, \"choices\": [TEXT, ...], \"answer\": INDEX}"));
  }
  return records;
}

}  // namespace millrace
