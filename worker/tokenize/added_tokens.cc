#include "worker/tokenize/added_tokens.h"

#include "worker/tokenize/unicode_door.h"

namespace millrace {

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens)
    : tokens_(std::move(tokens)), token_at_{-1} {
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const std::string& content = tokens_[i].content;
    begins_[static_cast<unsigned char>(content[0])] = true;
    int64_t node = 0;
    for (const char c : content) {
      const auto [child, is_new] =
          children_.emplace(node * 256 + static_cast<unsigned char>(c),
                            static_cast<int32_t>(token_at_.size()));
      if (is_new) token_at_.push_back(-1);
      node = child->second;
    }
    token_at_[node] = static_cast<int32_t>(i);
  }
}

const AddedToken* AddedTokenFinder::WalkFrom(absl::string_view text, size_t at,
                                             size_t* end) const {
  int32_t longest = -1;
  int64_t node = 0;
  while (at < text.size()) {
    const auto child =
        children_.find(node * 256 + static_cast<unsigned char>(text[at]));
    if (child == children_.end()) break;
    node = child->second;
    ++at;
    if (token_at_[node] >= 0) {
      longest = token_at_[node];
      *end = at;
    }
  }
  return longest < 0 ? nullptr : &tokens_[longest];
}

bool AddedTokenFinder::IsSingleWord(absl::string_view text, size_t begin,
                                    size_t end) {
  if (begin > 0 && IsWordCharacter(LastCodePoint(text, begin))) return false;
  size_t next = end;
  return end == text.size() || !IsWordCharacter(NextCodePoint(text, &next));
}

size_t AddedTokenFinder::WhiteSpaceBegin(absl::string_view text, size_t end) {
  while (end > 0) {
    const int32_t last = LastCodePoint(text, end);
    if (!IsWhiteSpace(last)) break;
    std::string bytes;
    AppendUtf8(last, &bytes);
    end -= bytes.size();
  }
  return end;
}

size_t AddedTokenFinder::WhiteSpaceEnd(absl::string_view text, size_t begin) {
  while (begin < text.size()) {
    size_t next = begin;
    if (!IsWhiteSpace(NextCodePoint(text, &next))) break;
    begin = next;
  }
  return begin;
}

}  // namespace millrace
