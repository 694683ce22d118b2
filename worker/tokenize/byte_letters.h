// The 256 letters that stand for bytes in byte-level tokenizers: a byte that is
// a printable Latin-1 character is that character, the 68 others are U+0100 and
// on, in order.

#ifndef MILLRACE_WORKER_TOKENIZE_BYTE_LETTERS_H_
#define MILLRACE_WORKER_TOKENIZE_BYTE_LETTERS_H_

#include <array>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace millrace {

// The code point of each byte's letter.
const std::array<int32_t, 256>& ByteLetters();

// The bytes that `letters` (well-formed UTF-8) stands for. False if one of its
// characters is no such letter; `bytes` is then undefined.
bool BytesOfLetters(absl::string_view letters, std::string* bytes);

}  // namespace millrace

#endif  // MILLRACE_WORKER_TOKENIZE_BYTE_LETTERS_H_
