#include "worker/tokenize/text_steps.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "worker/tokenize/unicode_door.h"

namespace millrace {
namespace {

absl::string_view StripWhiteSpace(absl::string_view text, bool left,
                                  bool right) {
  while (left && !text.empty()) {
    size_t next = 0;
    if (!IsWhiteSpace(NextCodePoint(text, &next))) break;
    text.remove_prefix(next);
  }
  while (right && !text.empty()) {
    const int32_t last = LastCodePoint(text, text.size());
    if (!IsWhiteSpace(last)) break;
    std::string bytes;
    AppendUtf8(last, &bytes);
    text.remove_suffix(bytes.size());
  }
  return text;
}

NormalForm FormOf(NormalizeKind kind) {
  switch (kind) {
    case NormalizeKind::kNfc:
      return NormalForm::kNfc;
    case NormalizeKind::kNfd:
      return NormalForm::kNfd;
    case NormalizeKind::kNfkc:
      return NormalForm::kNfkc;
    case NormalizeKind::kNfkd:
      return NormalForm::kNfkd;
    default:
      CHECK(false) << "no normal form";
  }
}

absl::StatusOr<std::vector<Matcher>> MakeMatchers(
    const std::vector<const TextPattern*>& patterns) {
  std::vector<Matcher> matchers;
  for (const TextPattern* pattern : patterns) {
    ASSIGN_OR_RETURN(Matcher matcher, Matcher::Make(*pattern));
    matchers.push_back(std::move(matcher));
  }
  return matchers;
}

// Joins spans to pieces as a behavior says and hands each piece on once it is
// known to be whole.
class SpanJoiner {
 public:
  SpanJoiner(SplitBehavior behavior,
             absl::FunctionRef<absl::Status(size_t, size_t)> on_piece)
      : behavior_(behavior), on_piece_(on_piece) {}

  absl::Status Add(size_t begin, size_t end, bool is_match) {
    switch (behavior_) {
      case SplitBehavior::kRemoved:
        return is_match ? absl::OkStatus() : on_piece_(begin, end);
      case SplitBehavior::kIsolated:
        return on_piece_(begin, end);
      case SplitBehavior::kMergedWithPrevious:
        return Join(begin, end, is_match, is_match && !was_match_);
      case SplitBehavior::kMergedWithNext:
        return Join(begin, end, is_match, !is_match && was_match_);
      case SplitBehavior::kContiguous:
        return Join(begin, end, is_match, is_match == was_match_);
    }
    CHECK(false) << "unknown behavior";
  }
  absl::Status Finish() {
    return is_open_ ? on_piece_(begin_, end_) : absl::OkStatus();
  }

 private:
  absl::Status Join(size_t begin, size_t end, bool is_match, bool joins) {
    was_match_ = is_match;
    if (is_open_ && joins) {
      end_ = end;
      return absl::OkStatus();
    }
    const bool was_open = std::exchange(is_open_, true);
    const size_t whole_begin = std::exchange(begin_, begin);
    const size_t whole_end = std::exchange(end_, end);
    return was_open ? on_piece_(whole_begin, whole_end) : absl::OkStatus();
  }

  SplitBehavior behavior_;
  absl::FunctionRef<absl::Status(size_t, size_t)> on_piece_;
  bool was_match_ = false;
  bool is_open_ = false;
  size_t begin_ = 0;
  size_t end_ = 0;
};

}  // namespace

absl::StatusOr<Matcher> Matcher::Make(const TextPattern& pattern) {
  Matcher matcher;
  if (pattern.is_regex) {
    absl::StatusOr<Regex> regex = Regex::Compile(pattern.text);
    if (!regex.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "pattern.Regex `", pattern.text, "`: ", regex.status().message()));
    }
    matcher.regex_ = std::make_unique<Regex>(*std::move(regex));
  } else {
    matcher.literal_ = pattern.text;
  }
  return matcher;
}

absl::Status Matcher::ForEachSpan(
    absl::string_view text, RegexCursor* cursor,
    absl::FunctionRef<absl::Status(size_t, size_t, bool)> on_span) const {
  if (regex_ != nullptr) return ForEachRegexSpan(text, cursor, on_span);
  size_t done = 0;
  for (size_t found = text.find(literal_); found != text.npos;
       found = text.find(literal_, done)) {
    if (done < found) RETURN_IF_ERROR(on_span(done, found, false));
    done = found + literal_.size();
    RETURN_IF_ERROR(on_span(found, done, true));
  }
  return done < text.size() ? on_span(done, text.size(), false)
                            : absl::OkStatus();
}

absl::Status Matcher::ForEachRegexSpan(
    absl::string_view text, RegexCursor* cursor,
    absl::FunctionRef<absl::Status(size_t, size_t, bool)> on_span) const {
  size_t done = 0;
  size_t from = 0;
  bool any = false;
  while (from <= text.size()) {
    RegexMatch match;
    ASSIGN_OR_RETURN(const bool found,
                     regex_->Find(text, from, cursor, &match));
    if (!found) break;
    // An empty match at the end of the one before does not count: the search
    // goes on one character further.
    if (match.begin == match.end && any && match.end == done) {
      if (match.end >= text.size()) break;
      from = match.end;
      NextCodePoint(text, &from);
      continue;
    }
    if (done < match.begin) {
      RETURN_IF_ERROR(on_span(done, match.begin, false));
    }
    RETURN_IF_ERROR(on_span(match.begin, match.end, true));
    done = from = match.end;
    any = true;
  }
  return done < text.size() ? on_span(done, text.size(), false)
                            : absl::OkStatus();
}

absl::StatusOr<std::string> Matcher::Replace(absl::string_view text,
                                             absl::string_view content,
                                             RegexCursor* cursor) const {
  std::string replaced;
  replaced.reserve(text.size());
  RETURN_IF_ERROR(
      ForEachSpan(text, cursor, [&](size_t begin, size_t end, bool is_match) {
        const absl::string_view span =
            is_match ? content : text.substr(begin, end - begin);
        replaced.append(span.data(), span.size());
        return absl::OkStatus();
      }));
  return replaced;
}

absl::StatusOr<Normalizer> Normalizer::Make(
    const std::vector<NormalizeStep>& steps) {
  Normalizer normalizer;
  normalizer.steps_ = steps;
  std::vector<const TextPattern*> patterns;
  for (const NormalizeStep& step : steps) patterns.push_back(&step.pattern);
  ASSIGN_OR_RETURN(normalizer.matchers_, MakeMatchers(patterns));
  return normalizer;
}

absl::StatusOr<absl::string_view> Normalizer::Normalize(
    absl::string_view text, RegexCursor* cursor, std::string* storage) const {
  for (size_t i = 0; i < steps_.size(); ++i) {
    std::string changed;
    bool is_changed = true;
    RETURN_IF_ERROR(Apply(i, text, cursor, &changed, &is_changed));
    if (!is_changed) continue;
    *storage = std::move(changed);
    text = *storage;
  }
  return text;
}

absl::Status Normalizer::Apply(size_t step_idx, absl::string_view text,
                               RegexCursor* cursor, std::string* changed,
                               bool* is_changed) const {
  const NormalizeStep& step = steps_[step_idx];
  switch (step.kind) {
    case NormalizeKind::kNfc:
    case NormalizeKind::kNfd:
    case NormalizeKind::kNfkc:
    case NormalizeKind::kNfkd:
      *is_changed = !IsNormal(FormOf(step.kind), text);
      if (*is_changed) {
        *changed = millrace::Normalize(FormOf(step.kind), text);
      }
      return absl::OkStatus();
    case NormalizeKind::kLowercase:
      *changed = Lowercase(text);
      return absl::OkStatus();
    case NormalizeKind::kReplace: {
      ASSIGN_OR_RETURN(*changed,
                       matchers_[step_idx].Replace(text, step.content, cursor));
      return absl::OkStatus();
    }
    case NormalizeKind::kPrepend:
      *is_changed = !text.empty();
      if (*is_changed) *changed = absl::StrCat(step.content, text);
      return absl::OkStatus();
    case NormalizeKind::kStrip:
      *changed = std::string(StripWhiteSpace(text, step.left, step.right));
      return absl::OkStatus();
  }
  CHECK(false) << "unknown step";
}

absl::StatusOr<PreTokenizer> PreTokenizer::Make(
    const std::vector<PreTokenizeStep>& steps) {
  PreTokenizer pre_tokenizer;
  pre_tokenizer.steps_ = steps;
  std::vector<const TextPattern*> patterns;
  for (const PreTokenizeStep& step : steps) patterns.push_back(&step.pattern);
  ASSIGN_OR_RETURN(pre_tokenizer.matchers_, MakeMatchers(patterns));
  return pre_tokenizer;
}

absl::Status PreTokenizer::Run(size_t step_idx, absl::string_view text,
                               bool at_begin, RegexCursor* cursor,
                               OnWord on_word) const {
  if (text.empty()) return absl::OkStatus();
  if (step_idx == steps_.size()) return on_word(text);
  switch (steps_[step_idx].kind) {
    case PreTokenizeKind::kSplit:
      return RunSplit(step_idx, text, cursor, on_word);
    case PreTokenizeKind::kPrefixSpace:
      if (text[0] == ' ') {
        return Run(step_idx + 1, text, at_begin, cursor, on_word);
      }
      return Run(step_idx + 1, absl::StrCat(" ", text), at_begin, cursor,
                 on_word);
    case PreTokenizeKind::kMetaspace:
      return RunMetaspace(step_idx, text, at_begin, cursor, on_word);
  }
  CHECK(false) << "unknown step";
}

absl::Status PreTokenizer::RunSplit(size_t step_idx, absl::string_view text,
                                    RegexCursor* cursor, OnWord on_word) const {
  const PreTokenizeStep& step = steps_[step_idx];
  const auto on_piece = [&](size_t begin, size_t end) {
    return Run(step_idx + 1, text.substr(begin, end - begin), false, cursor,
               on_word);
  };
  SpanJoiner joiner(step.behavior, on_piece);
  RETURN_IF_ERROR(matchers_[step_idx].ForEachSpan(
      text, cursor, [&](size_t begin, size_t end, bool is_match) {
        return joiner.Add(begin, end, is_match != step.invert);
      }));
  return joiner.Finish();
}

absl::Status PreTokenizer::RunMetaspace(size_t step_idx, absl::string_view text,
                                        bool at_begin, RegexCursor* cursor,
                                        OnWord on_word) const {
  const PreTokenizeStep& step = steps_[step_idx];
  const bool prepends = step.scheme == PrependScheme::kAlways ||
                        (step.scheme == PrependScheme::kFirst && at_begin);
  std::string replaced = absl::StrReplaceAll(text, {{" ", step.replacement}});
  if (prepends && !absl::StartsWith(replaced, step.replacement)) {
    replaced.insert(0, step.replacement);
  }
  return Run(step_idx + 1, replaced, at_begin, cursor, on_word);
}

}  // namespace millrace
