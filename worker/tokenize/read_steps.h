// The parts of tokenizer.json around its model, each a chain of steps.

#ifndef MILLRACE_WORKER_TOKENIZE_READ_STEPS_H_
#define MILLRACE_WORKER_TOKENIZE_READ_STEPS_H_

#include "absl/status/status.h"
#include "worker/tokenize/json_value.h"
#include "worker/tokenize/tokenizer_spec.h"

namespace millrace {

// Each reads one key of `file` into `spec`; a key that is absent or null gives
// no step. Errors are ReadTokenizerSpec()'s.
absl::Status ReadNormalizer(const JsonValue& file, TokenizerSpec* spec);
// Needs the added tokens and the normalizer.
absl::Status ReadPreTokenizer(const JsonValue& file, TokenizerSpec* spec);
absl::Status ReadPostProcessor(const JsonValue& file, TokenizerSpec* spec);
absl::Status ReadDecoder(const JsonValue& file, TokenizerSpec* spec);

}  // namespace millrace

#endif  // MILLRACE_WORKER_TOKENIZE_READ_STEPS_H_
