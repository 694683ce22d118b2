// Multiple-choice questions: which of some continuations does a model find most
// likely? docs/evaluation.md has the format.

#ifndef MILLRACE_WORKER_DATA_CHOICE_RECORDS_H_
#define MILLRACE_WORKER_DATA_CHOICE_RECORDS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/evaluation_batches.h"
#include "worker/data/tokenizer.h"

namespace millrace {

struct ChoiceRecord {
  std::vector<TokenSequence> choices;  // Context and choice, at least two.
  size_t answer = 0;                   // Index of the right one.
};

// Reads lines {"context": TEXT, "choices": [TEXT, ...], "answer": INDEX}. A
// choice's tokens begin where the tokens of context and choice together begin
// to differ from those of the context alone. InvalidArgument names file and
// line.
absl::StatusOr<std::vector<ChoiceRecord>> ReadChoiceRecords(
    const std::string& path, const Tokenizer& tokenizer,
    int64_t sequence_length);

}  // namespace millrace

#endif  // MILLRACE_WORKER_DATA_CHOICE_RECORDS_H_
