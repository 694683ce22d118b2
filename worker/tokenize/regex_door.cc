#include "worker/tokenize/regex_door.h"

// ICU, in the same unit of compilation, has another type of this name.
#define ONIG_ESCAPE_UCHAR_COLLISION
#include <oniguruma.h>
#undef ONIG_ESCAPE_UCHAR_COLLISION

#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "worker/tokenize/unicode_door.h"

namespace millrace {
namespace {

// The library's own default, at which Hugging Face's gives up too.
constexpr unsigned long kMaxRetriesInMatch = 10'000'000;
// Tries from one place after another add up to this.
constexpr unsigned long kMaxRetriesInSearch = 100'000'000;
constexpr size_t kMaxPatternBytes = 64 << 10;

const OnigUChar* Bytes(const char* text) {
  return reinterpret_cast<const OnigUChar*>(text);
}

std::string OnigurumaReason(int code, OnigErrorInfo* info) {
  OnigUChar reason[ONIG_MAX_ERROR_MESSAGE_LEN];
  const int size = onig_error_code_to_str(reason, code, info);
  return {reinterpret_cast<const char*>(reason), static_cast<size_t>(size)};
}

// Gives the library the categories of Unicode 16 in place of its own. A name
// that is defined here goes before the library's.
void DefineCategories() {
  // The library keeps pointers to the ranges, which live as long as it does.
  static auto& all_ranges = *new std::deque<std::vector<OnigCodePoint>>;
  for (const char* category :
       {"L", "Lu", "Ll", "Lt", "Lm", "Lo", "M", "Mn", "Mc", "N", "Nd", "No",
        "P", "Po", "Pd", "S", "Sm", "So"}) {
    const std::vector<uint32_t> ranges = CategoryRanges(category);
    std::vector<OnigCodePoint>& kept = all_ranges.emplace_back();
    kept.push_back(static_cast<OnigCodePoint>(ranges.size() / 2));
    kept.insert(kept.end(), ranges.begin(), ranges.end());
    const int code = onig_unicode_define_user_property(category, kept.data());
    CHECK(code == ONIG_NORMAL) << OnigurumaReason(code, nullptr);
  }
}

void InitializeOniguruma() {
  static const bool initialized = [] {
    OnigEncoding encodings[] = {ONIG_ENCODING_UTF8};
    CHECK(onig_initialize(encodings, 1) == ONIG_NORMAL);
    DefineCategories();
    return true;
  }();
  CHECK(initialized);
}

}  // namespace

class RegexCursor::Impl {
 public:
  Impl() : region(onig_region_new()), limits(onig_new_match_param()) {
    CHECK(region != nullptr && limits != nullptr) << "out of memory";
    onig_initialize_match_param(limits);
    onig_set_retry_limit_in_match_of_match_param(limits, kMaxRetriesInMatch);
    onig_set_retry_limit_in_search_of_match_param(limits, kMaxRetriesInSearch);
  }
  ~Impl() {
    onig_free_match_param(limits);
    onig_region_free(region, 1);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  OnigRegion* region;
  OnigMatchParam* limits;
};

RegexCursor::RegexCursor() : impl_(std::make_unique<Impl>()) {}
RegexCursor::~RegexCursor() = default;

class Regex::Impl {
 public:
  Impl() = default;
  ~Impl() {
    if (regex != nullptr) onig_free(regex);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  OnigRegex regex = nullptr;
};

Regex::Regex(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Regex::Regex(Regex&& other) noexcept = default;
Regex& Regex::operator=(Regex&& other) noexcept = default;
Regex::~Regex() = default;

absl::StatusOr<Regex> Regex::Compile(absl::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the regular expression has ", pattern.size(),
                     " bytes; at most ", kMaxPatternBytes, " are read"));
  }
  InitializeOniguruma();
  auto impl = std::make_unique<Impl>();
  OnigErrorInfo info;
  const int code =
      onig_new(&impl->regex, Bytes(pattern.data()),
               Bytes(pattern.data() + pattern.size()), ONIG_OPTION_NONE,
               ONIG_ENCODING_UTF8, ONIG_SYNTAX_RUBY, &info);
  if (code != ONIG_NORMAL) {
    return absl::InvalidArgumentError(
        absl::StrCat("the regular expression does not compile: ",
                     OnigurumaReason(code, &info)));
  }
  return Regex(std::move(impl));
}

absl::StatusOr<bool> Regex::Find(absl::string_view text, size_t from,
                                 RegexCursor* cursor, RegexMatch* match) const {
  const OnigUChar* begin = Bytes(text.data());
  const OnigUChar* end = begin + text.size();
  OnigRegion* region = cursor->impl_->region;
  // Patterns that split text match nearly everywhere, and to match at one place
  // costs less than to begin a search.
  int code =
      onig_match_with_param(impl_->regex, begin, end, begin + from, region,
                            ONIG_OPTION_NONE, cursor->impl_->limits);
  if (code == ONIG_MISMATCH) {
    code =
        onig_search_with_param(impl_->regex, begin, end, begin + from, end,
                               region, ONIG_OPTION_NONE, cursor->impl_->limits);
  }
  if (code == ONIG_MISMATCH) return false;
  if (code < 0) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the regular expression gives up at byte ", from, " of a text of ",
        text.size(), " bytes: ", OnigurumaReason(code, nullptr)));
  }
  match->begin = static_cast<size_t>(region->beg[0]);
  match->end = static_cast<size_t>(region->end[0]);
  return true;
}

}  // namespace millrace
