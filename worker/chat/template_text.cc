#include "worker/chat/template_text.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/tokenize/unicode_door.h"

namespace millrace {
namespace {

// str.isspace() of Python: White_Space and four separators of ASCII.
bool IsPythonSpace(int32_t code_point) {
  return (code_point >= 0x1C && code_point <= 0x1F) || IsWhiteSpace(code_point);
}

bool IsLetter(char c) {
  return absl::ascii_isalpha(c) || static_cast<unsigned char>(c) >= 0x80;
}

}  // namespace

std::string StripText(absl::string_view text, absl::string_view set,
                      bool at_begin, bool at_end) {
  std::vector<int32_t> characters;
  for (size_t i = 0; i < set.size();) {
    characters.push_back(NextCodePoint(set, &i));
  }
  const auto drops = [&](int32_t code_point) {
    return set.empty() ? IsPythonSpace(code_point)
                       : std::find(characters.begin(), characters.end(),
                                   code_point) != characters.end();
  };
  size_t begin = 0;
  while (at_begin && begin < text.size()) {
    size_t after = begin;
    if (!drops(NextCodePoint(text, &after))) break;
    begin = after;
  }
  size_t end = text.size();
  while (at_end && end > begin) {
    const int32_t last = LastCodePoint(text, end);
    if (!drops(last)) break;
    do {
      --end;
    } while ((static_cast<unsigned char>(text[end]) & 0xC0) == 0x80);
  }
  return std::string(text.substr(begin, end - begin));
}

std::vector<std::string> SplitText(absl::string_view text,
                                   absl::string_view separator,
                                   int64_t max_splits, bool from_end) {
  // Where parts begin and end.
  std::vector<std::pair<size_t, size_t>> parts;
  if (separator.empty()) {
    for (size_t i = 0; i < text.size();) {
      const size_t begin = i;
      const bool is_space = IsPythonSpace(NextCodePoint(text, &i));
      if (is_space) continue;
      if (parts.empty() || parts.back().second != begin) {
        parts.emplace_back(begin, i);
      } else {
        parts.back().second = i;
      }
    }
  } else {
    size_t begin = 0;
    for (size_t at = text.find(separator); at != absl::string_view::npos;
         at = text.find(separator, begin)) {
      parts.emplace_back(begin, at);
      begin = at + separator.size();
    }
    parts.emplace_back(begin, text.size());
  }
  const auto limit =
      max_splits < 0 ? parts.size() : static_cast<size_t>(max_splits) + 1;
  if (parts.size() > limit) {
    if (from_end) {
      const size_t num_joined = parts.size() - limit + 1;
      const size_t begin = separator.empty() ? 0 : parts.front().first;
      parts[num_joined - 1].first = begin;
      parts.erase(parts.begin(),
                  parts.begin() + static_cast<std::ptrdiff_t>(num_joined) - 1);
    } else {
      parts.resize(limit);
      parts.back().second = text.size();
    }
  }
  std::vector<std::string> texts;
  for (const auto& [begin, end] : parts) {
    texts.emplace_back(text.substr(begin, end - begin));
  }
  return texts;
}

std::vector<std::string> SplitLines(absl::string_view text) {
  std::vector<std::string> lines;
  size_t begin = 0;
  for (size_t i = 0; i < text.size();) {
    const size_t at = i;
    const int32_t c = NextCodePoint(text, &i);
    const bool ends_line = (c >= 0x0A && c <= 0x0D) ||
                           (c >= 0x1C && c <= 0x1E) || c == 0x85 ||
                           c == 0x2028 || c == 0x2029;
    if (!ends_line) continue;
    lines.emplace_back(text.substr(begin, at - begin));
    if (c == 0x0D && i < text.size() && text[i] == '\n') ++i;
    begin = i;
  }
  if (begin < text.size()) lines.emplace_back(text.substr(begin));
  return lines;
}

absl::StatusOr<std::string> ReplaceText(absl::string_view text,
                                        absl::string_view from,
                                        absl::string_view to, int64_t count,
                                        TemplateMeter& meter) {
  std::string replaced;
  size_t at = 0;
  for (int64_t done = 0; count < 0 || done < count; ++done) {
    RETURN_IF_ERROR(meter.Charge(static_cast<int64_t>(to.size()) + 1));
    if (from.empty()) {  // Between all characters, and at both ends.
      absl::StrAppend(&replaced, to);
      if (at >= text.size()) return replaced;
      const size_t begin = at;
      NextCodePoint(text, &at);
      absl::StrAppend(&replaced, text.substr(begin, at - begin));
      continue;
    }
    const size_t found = text.find(from, at);
    if (found == absl::string_view::npos) break;
    absl::StrAppend(&replaced, text.substr(at, found - at), to);
    at = found + from.size();
  }
  absl::StrAppend(&replaced, text.substr(at));
  return replaced;
}

std::string ChangeCase(absl::string_view text, absl::string_view method) {
  if (method == "upper") return UpperText(text);
  if (method == "lower") return LowerText(text);
  std::string changed;
  bool in_word = false;
  for (size_t i = 0; i < text.size();) {
    const size_t begin = i;
    NextCodePoint(text, &i);
    const absl::string_view character = text.substr(begin, i - begin);
    changed += in_word ? LowerText(character) : UpperText(character);
    in_word =
        method == "capitalize" || LowerText(character) != UpperText(character);
  }
  return changed;
}

bool IsTextOf(absl::string_view text, absl::string_view method) {
  if (text.empty()) return false;
  if (method == "isupper" || method == "islower") {
    const bool upper = method == "isupper";
    return UpperText(text) != LowerText(text) &&
           (upper ? UpperText(text) : LowerText(text)) == text;
  }
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    const int32_t code_point = NextCodePoint(text, &i);
    const bool is = method == "isspace"   ? IsPythonSpace(code_point)
                    : method == "isdigit" ? absl::ascii_isdigit(c)
                    : method == "isalpha"
                        ? IsLetter(c) && IsWordCharacter(code_point)
                        : absl::ascii_isdigit(c) ||
                              (IsLetter(c) && IsWordCharacter(code_point));
    if (!is) return false;
  }
  return true;
}

}  // namespace millrace
