// Encodes the records of preference sources: pairs of a chosen and a rejected
// answer to one prompt. A record has
//   prompt, chosen, rejected: texts, or lists of messages; or
//   chosen, rejected: whole conversations, which begin with the same messages.
// Each answer becomes a sample as worker/chat/chat_sample.h makes it of a
// prompt and a completion: the answer is trained, the prompt is not.

#ifndef MILLRACE_WORKER_DATA_PREFERENCE_ENCODER_H_
#define MILLRACE_WORKER_DATA_PREFERENCE_ENCODER_H_

#include <string>
#include <vector>

#include "worker/data/chat_encoder.h"
#include "worker/data/record_encoder.h"

namespace millrace {

class PreferenceEncoder : public RecordEncoder {
 public:
  // Ignores the column and train_on.
  explicit PreferenceEncoder(const ChatEncoderOptions& options);

  std::vector<std::string> columns() const override;
  bool marks_trained() const override { return true; }
  bool makes_pairs() const override { return true; }
  void Encode(Record* record, EncodedRecord* encoded) const override;

 private:
  const ChatSampleOptions options_;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_DATA_PREFERENCE_ENCODER_H_
