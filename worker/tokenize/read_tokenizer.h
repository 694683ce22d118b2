// Reads tokenizer.json, the file of Hugging Face's `tokenizers`.

#ifndef MILLRACE_WORKER_TOKENIZE_READ_TOKENIZER_H_
#define MILLRACE_WORKER_TOKENIZE_READ_TOKENIZER_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/tokenize/tokenizer_spec.h"

namespace millrace {

// InvalidArgument names the key, its value and the mistake. A feature that the
// file asks for and Millrace lacks is refused in the same way, as are unknown
// keys. Patterns are not compiled here.
absl::StatusOr<TokenizerSpec> ReadTokenizerSpec(absl::string_view json);

}  // namespace millrace

#endif  // MILLRACE_WORKER_TOKENIZE_READ_TOKENIZER_H_
