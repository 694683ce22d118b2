// Encodes the records of chat sources: conversations, or prompts with
// completions, as worker/chat/chat_sample.h reads them.

#ifndef MILLRACE_WORKER_DATA_CHAT_ENCODER_H_
#define MILLRACE_WORKER_DATA_CHAT_ENCODER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/json.h"
#include "worker/chat/chat_files.h"
#include "worker/chat/chat_sample.h"
#include "worker/data/record_encoder.h"
#include "worker/data/tokenizer.h"

namespace millrace {

// Rows of a table have every field that any row has; null stands for none.
// `content` stays, since templates ask whether it is none.
void RemoveNulls(nlohmann::ordered_json* value);

// Templates make no longer text, and a record takes up to a hundred times its
// bytes while it is read.
inline constexpr int64_t kMaxChatRecordBytes = int64_t{32} << 20;

// InvalidArgument for a longer record.
absl::Status CheckChatRecordSize(const Record& record);

struct ChatEncoderOptions {
  const Tokenizer* tokenizer;  // Borrowed; a tokenizer.json.
  const ChatFiles* files;      // Borrowed.
  std::string column;          // Empty: the usual names.
  std::string train_on;        // DataSourceSpec's.
  std::string date;
};

class ChatEncoder : public RecordEncoder {
 public:
  explicit ChatEncoder(const ChatEncoderOptions& options);

  std::vector<std::string> columns() const override;
  bool marks_trained() const override { return true; }
  void Encode(Record* record, EncodedRecord* encoded) const override;

 private:
  const std::string column_;
  const ChatSampleOptions options_;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_DATA_CHAT_ENCODER_H_
