// The door through which JSON from outside comes in. The library behind it
// throws, and copies and prints documents by recursion: a text of ten thousand
// open brackets would overflow the stack. So depth is bounded here, before
// anything is parsed.

#ifndef MILLRACE_BASE_JSON_H_
#define MILLRACE_BASE_JSON_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace millrace {

// Lists and objects within each other. Nothing that Millrace reads nests a
// fourth as deep.
inline constexpr int kMaxNesting = 64;

// InvalidArgument "line N: ..." where brackets outside of texts are nested
// deeper than kMaxNesting. Takes time linear in the length of `text`.
absl::Status CheckJsonNesting(absl::string_view text);

// InvalidArgument "line N: ..." for text that is not JSON or nests too deep.
// The caller's message names the file.
absl::StatusOr<nlohmann::json> ParseJson(absl::string_view text);
// The same, and also for an object with a key that is there twice.
absl::StatusOr<nlohmann::json> ParseJsonOnce(absl::string_view text);
// As ParseJson(), with the keys of objects in the order of the text.
absl::StatusOr<nlohmann::ordered_json> ParseOrderedJson(absl::string_view text);

// The document as text. Never throws: bytes that are not UTF-8, as paths may
// have, become U+FFFD. `indent` below 0: on one line.
std::string JsonText(const nlohmann::json& json, int indent = -1);
std::string JsonText(const nlohmann::ordered_json& json, int indent = -1);

}  // namespace millrace

#endif  // MILLRACE_BASE_JSON_H_
