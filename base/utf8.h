// The one encoding of text here: jobs, messages and records are UTF-8.

#ifndef MILLRACE_BASE_UTF8_H_
#define MILLRACE_BASE_UTF8_H_

#include "absl/strings/string_view.h"

namespace millrace {

// True if `text` is well-formed UTF-8 (RFC 3629: no surrogates, no overlong
// forms, nothing above U+10FFFF).
bool IsUtf8(absl::string_view text);

}  // namespace millrace

#endif  // MILLRACE_BASE_UTF8_H_
