// The steps that turn the tokens of ids into text.

#ifndef MILLRACE_WORKER_TOKENIZE_DECODER_H_
#define MILLRACE_WORKER_TOKENIZE_DECODER_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/tokenize/text_steps.h"
#include "worker/tokenize/tokenizer_spec.h"

namespace millrace {

class Decoder {
 public:
  // Without steps, tokens are put together as they are.
  static absl::StatusOr<Decoder> Make(const std::vector<DecodeStep>& steps);
  absl::StatusOr<std::string> Decode(std::vector<std::string> tokens) const;

 private:
  absl::Status Apply(size_t step_idx, RegexCursor* cursor,
                     std::vector<std::string>* tokens) const;

  std::vector<DecodeStep> steps_;
  std::vector<Matcher> matchers_;  // By step; unused but for kReplace.
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_TOKENIZE_DECODER_H_
