#include "worker/chat/template_lexer.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status_macros.h"
#include "worker/tokenize/unicode_door.h"

namespace millrace {
namespace {

using TokenKind = TemplateToken::Kind;

bool IsNameBegin(char c) {
  return absl::ascii_isalpha(c) || c == '_' ||
         static_cast<unsigned char>(c) >= 0x80;
}
bool IsNamePart(char c) { return IsNameBegin(c) || absl::ascii_isdigit(c); }

class TemplateLexer {
 public:
  explicit TemplateLexer(absl::string_view source)
      : source_(absl::StrReplaceAll(source, {{"\r\n", "\n"}, {"\r", "\n"}})) {
    if (absl::EndsWith(source_, "\n")) source_.pop_back();
  }

  absl::StatusOr<std::vector<TemplateToken>> Run() {
    while (at_ < source_.size()) RETURN_IF_ERROR(LexTextAndTag());
    Add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  absl::string_view Rest() const {
    return absl::string_view(source_).substr(at_);
  }
  void Add(TokenKind kind, std::string text) {
    tokens_.push_back({kind, std::move(text), line_});
  }
  void Move(size_t count) {
    line_ += static_cast<int32_t>(std::count(
        source_.begin() + static_cast<std::ptrdiff_t>(at_),
        source_.begin() + static_cast<std::ptrdiff_t>(at_ + count), '\n'));
    at_ += count;
    if (count > 0) starts_line_ = source_[at_ - 1] == '\n';
  }
  absl::Status Error(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat(line_, ": ", what));
  }

  // Text up to the next tag, then the tag.
  absl::Status LexTextAndTag() {
    size_t tag = at_;
    while (true) {
      tag = source_.find('{', tag);
      if (tag == std::string::npos || tag + 1 >= source_.size()) {
        tag = std::string::npos;
        break;
      }
      const char c = source_[tag + 1];
      if (c == '{' || c == '%' || c == '#') break;
      ++tag;
    }
    if (tag == std::string::npos) {
      Add(TokenKind::kText, std::string(Rest()));
      Move(source_.size() - at_);
      return absl::OkStatus();
    }
    const char kind = source_[tag + 1];
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    std::string text = source_.substr(at_, tag - at_);
    if (sign == '-') {
      text = std::string(absl::StripTrailingAsciiWhitespace(text));
    } else if (sign != '+' && kind != '{') {
      StripLineBegin(&text);
    }
    if (!text.empty()) Add(TokenKind::kText, std::move(text));
    Move(tag - at_ + 2 + (sign == '-' || sign == '+' ? 1 : 0));
    if (kind == '#') return SkipComment();
    if (kind == '%' && IsRaw()) return LexRaw();
    return LexTag(kind == '{');
  }

  // lstrip_blocks: drops white space from the begin of the tag's line.
  void StripLineBegin(std::string* text) const {
    const size_t newline = text->rfind('\n');
    const size_t begin = newline == std::string::npos ? 0 : newline + 1;
    if (begin == 0 && !starts_line_) return;
    if (std::all_of(text->begin() + static_cast<std::ptrdiff_t>(begin),
                    text->end(),
                    [](char c) { return absl::ascii_isspace(c); })) {
      text->resize(begin);
    }
  }

  // Moves behind the end of a block or comment: `close` is "%}" or "#}". False
  // where none is.
  bool SkipEnd(absl::string_view close) {
    for (const char sign : {'-', '+', '\0'}) {
      const std::string end = sign == '\0'
                                  ? std::string(close)
                                  : absl::StrCat(std::string(1, sign), close);
      if (!absl::StartsWith(Rest(), end)) continue;
      Move(end.size());
      if (sign == '-') {
        SkipSpace();
      } else if (sign == '\0' && close != "}}" &&
                 absl::StartsWith(Rest(), "\n")) {
        Move(1);
      }
      return true;
    }
    return false;
  }
  void SkipSpace() {
    size_t count = 0;
    while (at_ + count < source_.size() &&
           absl::ascii_isspace(source_[at_ + count])) {
      ++count;
    }
    Move(count);
  }

  absl::Status SkipComment() {
    const size_t end = source_.find("#}", at_);
    if (end == std::string::npos) return Error("'{#' without '#}'");
    const char sign = end > at_ ? source_[end - 1] : '\0';
    Move(end - at_ - (sign == '-' || sign == '+' ? 1 : 0));
    SkipEnd("#}");
    return absl::OkStatus();
  }

  bool IsRaw() const {
    return absl::StartsWith(absl::StripLeadingAsciiWhitespace(Rest()), "raw") &&
           [&] {
             absl::string_view rest =
                 absl::StripLeadingAsciiWhitespace(Rest()).substr(3);
             rest = absl::StripLeadingAsciiWhitespace(rest);
             return absl::StartsWith(rest, "%}") ||
                    absl::StartsWith(rest, "-%}") ||
                    absl::StartsWith(rest, "+%}");
           }();
  }
  absl::Status LexRaw() {
    SkipSpace();
    Move(3);
    SkipSpace();
    SkipEnd("%}");
    for (size_t end = source_.find("{%", at_); end != std::string::npos;
         end = source_.find("{%", end + 2)) {
      absl::string_view rest = absl::string_view(source_).substr(end + 2);
      const char sign = rest.empty() ? '\0' : rest[0];
      if (sign == '-' || sign == '+') rest.remove_prefix(1);
      rest = absl::StripLeadingAsciiWhitespace(rest);
      if (!absl::StartsWith(rest, "endraw")) continue;
      rest.remove_prefix(6);
      rest = absl::StripLeadingAsciiWhitespace(rest);
      const size_t close = source_.size() - rest.size();
      std::string text = source_.substr(at_, end - at_);
      if (sign == '-') {
        text = std::string(absl::StripTrailingAsciiWhitespace(text));
      } else if (sign != '+') {
        StripLineBegin(&text);
      }
      Add(TokenKind::kText, std::move(text));
      Move(close - at_);
      if (!SkipEnd("%}")) return Error("'endraw' without '%}'");
      return absl::OkStatus();
    }
    return Error("'raw' without 'endraw'");
  }

  absl::Status LexTag(bool prints) {
    const absl::string_view close = prints ? "}}" : "%}";
    Add(prints ? TokenKind::kPrintBegin : TokenKind::kBlockBegin, "");
    std::string open;  // Brackets that wait for their end.
    while (true) {
      SkipSpace();
      if (at_ >= source_.size()) {
        return Error(absl::StrCat("a tag without '", close, "'"));
      }
      if (open.empty() && SkipEnd(close)) break;
      RETURN_IF_ERROR(LexToken(&open));
    }
    Add(prints ? TokenKind::kPrintEnd : TokenKind::kBlockEnd, "");
    return absl::OkStatus();
  }

  absl::Status LexToken(std::string* open) {
    const char c = source_[at_];
    if (IsNameBegin(c)) {
      size_t count = 1;
      while (at_ + count < source_.size() && IsNamePart(source_[at_ + count])) {
        ++count;
      }
      Add(TokenKind::kName, source_.substr(at_, count));
      Move(count);
      return absl::OkStatus();
    }
    if (absl::ascii_isdigit(c)) return LexNumber();
    if (c == '"' || c == '\'') return LexString(c);
    constexpr std::array<absl::string_view, 27> kOperators = {
        "==", "!=", ">=", "<=", "//", "**", "+", "-", "*",
        "/",  "%",  "~",  "<",  ">",  "=",  ".", ",", ":",
        "|",  "(",  ")",  "[",  "]",  "{",  "}", ";", "!"};
    for (const absl::string_view op : kOperators) {
      if (!absl::StartsWith(Rest(), op)) continue;
      constexpr absl::string_view kOpening = "([{", kClosing = ")]}";
      if (kOpening.find(c) != absl::string_view::npos) open->push_back(c);
      if (const size_t kind = kClosing.find(c);
          kind != absl::string_view::npos) {
        if (open->empty() || open->back() != kOpening[kind]) {
          return Error(absl::StrCat("unexpected '", op, "'"));
        }
        open->pop_back();
      }
      Add(TokenKind::kOperator, std::string(op));
      Move(op.size());
      return absl::OkStatus();
    }
    return Error(absl::StrCat("unexpected character '", std::string(1, c),
                              "' in a tag"));
  }

  absl::Status LexNumber() {
    const auto digits = [&](size_t from) {
      size_t end = from;
      while (end < source_.size() &&
             (absl::ascii_isdigit(source_[end]) ||
              (source_[end] == '_' && end > from && end + 1 < source_.size() &&
               absl::ascii_isdigit(source_[end + 1])))) {
        ++end;
      }
      return end;
    };
    size_t end = digits(at_);
    bool is_float = false;
    if (end + 1 < source_.size() && source_[end] == '.' &&
        absl::ascii_isdigit(source_[end + 1])) {
      is_float = true;
      end = digits(end + 1);
    }
    if (end < source_.size() && (source_[end] | 32) == 'e') {
      size_t exponent = end + 1;
      if (exponent < source_.size() &&
          (source_[exponent] == '+' || source_[exponent] == '-')) {
        ++exponent;
      }
      if (const size_t after = digits(exponent); after > exponent) {
        is_float = true;
        end = after;
      }
    }
    Add(is_float ? TokenKind::kFloat : TokenKind::kInteger,
        absl::StrReplaceAll(source_.substr(at_, end - at_), {{"_", ""}}));
    Move(end - at_);
    return absl::OkStatus();
  }

  absl::Status LexString(char quote) {
    std::string text;
    size_t i = at_ + 1;
    while (true) {
      if (i >= source_.size()) return Error("a string without its end");
      const char c = source_[i];
      if (c == quote) break;
      if (c != '\\') {
        text.push_back(c);
        ++i;
        continue;
      }
      if (++i >= source_.size()) return Error("a string without its end");
      RETURN_IF_ERROR(LexEscape(&i, &text));
    }
    Add(TokenKind::kString, std::move(text));
    Move(i + 1 - at_);
    return absl::OkStatus();
  }

  // `*i` is behind the backslash; moves it behind the escape.
  absl::Status LexEscape(size_t* i, std::string* text) const {
    const char c = source_[(*i)++];
    constexpr absl::string_view kLetters = "abfnrtv\\'\"";
    constexpr absl::string_view kMeanings = "\a\b\f\n\r\t\v\\'\"";
    if (const size_t at = kLetters.find(c); at != absl::string_view::npos) {
      text->push_back(kMeanings[at]);
      return absl::OkStatus();
    }
    if (c == '\n') return absl::OkStatus();
    const size_t num_digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    uint32_t code = 0;
    if (num_digits > 0) {
      for (size_t k = 0; k < num_digits; ++k, ++*i) {
        if (*i >= source_.size() || !absl::ascii_isxdigit(source_[*i])) {
          return Error("a broken escape in a string");
        }
        const char digit = absl::ascii_tolower(source_[*i]);
        code = code * 16 + static_cast<uint32_t>(
                               digit <= '9' ? digit - '0' : digit - 'a' + 10);
      }
      if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) {
        return Error("an escape in a string is no character");
      }
      AppendUtf8(static_cast<int32_t>(code), text);
    } else if (c >= '0' && c <= '7') {
      --*i;
      for (int k = 0; k < 3 && *i < source_.size() && source_[*i] >= '0' &&
                      source_[*i] <= '7';
           ++k, ++*i) {
        code = code * 8 + static_cast<uint32_t>(source_[*i] - '0');
      }
      AppendUtf8(static_cast<int32_t>(code), text);
    } else if (c == 'N') {
      return Error("escapes by name (\\N) are not supported");
    } else {
      text->push_back('\\');
      text->push_back(c);
    }
    return absl::OkStatus();
  }

  std::string source_;
  size_t at_ = 0;
  int32_t line_ = 1;
  bool starts_line_ = true;
  std::vector<TemplateToken> tokens_;
};

}  // namespace

absl::StatusOr<std::vector<TemplateToken>> LexTemplate(
    absl::string_view source) {
  return TemplateLexer(source).Run();
}

}  // namespace millrace
