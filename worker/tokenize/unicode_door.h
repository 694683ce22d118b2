// The Unicode functions that tokenizers need: the only way to the ICU library.
//
// Text is UTF-8. Where the answer depends on the version of Unicode it is that
// of Hugging Face's `tokenizers`: normal forms are those of Unicode 9 (later
// characters stay as they are), categories those of Unicode 16.

#ifndef MILLRACE_WORKER_TOKENIZE_UNICODE_DOOR_H_
#define MILLRACE_WORKER_TOKENIZE_UNICODE_DOOR_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace millrace {

enum class NormalForm : uint8_t { kNfc, kNfd, kNfkc, kNfkd };

// True if normalizing would not change `text`. It may say false for some such
// texts.
bool IsNormal(NormalForm form, absl::string_view text);
// `text` must be well-formed.
std::string Normalize(NormalForm form, absl::string_view text);
// Each character by itself, as Rust's char::to_lowercase does.
std::string Lowercase(absl::string_view text);
// All of it, in no language, as Python's str.lower() and str.upper() do: an
// upper case may have more characters. `text` must be well-formed.
std::string LowerText(absl::string_view text);
std::string UpperText(absl::string_view text);

// The code point that begins at `text[*position]`, in well-formed text. Moves
// `position` behind it.
int32_t NextCodePoint(absl::string_view text, size_t* position);
// The code point that ends before `text[end]`, where `end` is above zero.
int32_t LastCodePoint(absl::string_view text, size_t end);
void AppendUtf8(int32_t code_point, std::string* text);

bool IsWhiteSpace(int32_t code_point);
// \w of Rust's regular expressions.
bool IsWordCharacter(int32_t code_point);

// The code points of a general category ("L", "Lu"): first and last of each
// range, in order.
std::vector<uint32_t> CategoryRanges(const char* category);

// `text` with each ill-formed part replaced by U+FFFD, as the decoders of
// Python (errors="replace") and JavaScript do.
std::string RepairUtf8(absl::string_view text);

}  // namespace millrace

#endif  // MILLRACE_WORKER_TOKENIZE_UNICODE_DOOR_H_
