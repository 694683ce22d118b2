// A RecordEncoder turns the records of one source into tokens. Each kind of
// record has its own: text here, chat in chat_encoder.h.

#ifndef MILLRACE_WORKER_DATA_RECORD_ENCODER_H_
#define MILLRACE_WORKER_DATA_RECORD_ENCODER_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "worker/data/tokenizer.h"
#include "worker/records/records.h"

namespace millrace {

struct EncodedRecord {
  TextVerdict verdict = TextVerdict::kText;
  bool is_empty = false;
  std::string broken;   // Why; empty: it is not.
  absl::Status status;  // An error ends the conversion.
  std::vector<int32_t> tokens;
  // One a token, 0 or 1, where the encoder marks what is trained.
  std::vector<uint8_t> trained;
  // Only for pairs: so many first tokens are the chosen answer's, the others
  // the rejected one's.
  size_t num_chosen_tokens = 0;
};

// Thread-safe once made.
class RecordEncoder {
 public:
  virtual ~RecordEncoder() = default;
  // The columns that it looks for.
  virtual std::vector<std::string> columns() const = 0;
  // Whether samples say which of their tokens are trained; else all are.
  virtual bool marks_trained() const = 0;
  // Whether records are pairs of answers, each a document.
  virtual bool makes_pairs() const { return false; }
  // The record is one of text, so not left out; its columns are taken.
  virtual void Encode(Record* record, EncodedRecord* encoded) const = 0;
};

// The text of one column, ended by the token that ends documents.
class TextEncoder : public RecordEncoder {
 public:
  // `tokenizer` is borrowed.
  TextEncoder(const Tokenizer* tokenizer, std::string column)
      : tokenizer_(tokenizer), column_(std::move(column)) {}

  std::vector<std::string> columns() const override { return {column_}; }
  bool marks_trained() const override { return false; }
  void Encode(Record* record, EncodedRecord* encoded) const override {
    absl::StatusOr<std::string> text = record->TakeText(column_);
    if (!text.ok()) {
      encoded->broken = std::string(text.status().message());
    } else if (text->empty()) {
      encoded->is_empty = true;
    } else {
      encoded->status = tokenizer_->EncodeDocument(*text, &encoded->tokens);
    }
  }

 private:
  const Tokenizer* tokenizer_;
  const std::string column_;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_DATA_RECORD_ENCODER_H_
