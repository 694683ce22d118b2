// Reads tokenizer.json, the file of Hugging Face's `tokenizers`.

#ifndef MILLRACE_WORKER_TOKENIZE_READ_TOKENIZER_H_
#define MILLRACE_WORKER_TOKENIZE_READ_TOKENIZER_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/tokenize/tokenizer_spec.h"

namespace millrace {

// InvalidArgument names the key, its value and what is wrong with it. What the
// file asks for and Millrace does not do is refused so too, unknown keys among
// it. Patterns are not compiled here.
absl::StatusOr<TokenizerSpec> ReadTokenizerSpec(absl::string_view json);

}  // namespace millrace

#endif  // MILLRACE_WORKER_TOKENIZE_READ_TOKENIZER_H_
