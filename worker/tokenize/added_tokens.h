// Finds added tokens in a text: the longest at the leftmost place, then on from
// its end.

#ifndef MILLRACE_WORKER_TOKENIZE_ADDED_TOKENS_H_
#define MILLRACE_WORKER_TOKENIZE_ADDED_TOKENS_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "worker/tokenize/tokenizer_spec.h"

namespace millrace {

class AddedTokenFinder {
 public:
  // A token's `content` is what is looked for; none is empty or there twice.
  explicit AddedTokenFinder(std::vector<AddedToken> tokens);

  bool empty() const { return tokens_.empty(); }

  // Calls on_text(begin, end) for what lies between tokens and on_token(id) for
  // each token, in order. Either may return false to end the walk.
  template <typename OnText, typename OnToken>
  bool Split(absl::string_view text, const OnText& on_text,
             const OnToken& on_token) const {
    size_t done = 0;
    for (size_t at = 0; at < text.size();) {
      size_t end = 0;
      const AddedToken* token = LongestAt(text, at, &end);
      if (token == nullptr) {
        ++at;
        continue;
      }
      const size_t begin = at;
      at = end;
      if (token->single_word && !IsSingleWord(text, begin, end)) continue;
      const size_t cut =
          token->lstrip ? std::max(WhiteSpaceBegin(text, begin), done) : begin;
      if (done < cut && !on_text(done, cut)) return false;
      if (!on_token(token->id)) return false;
      done = token->rstrip ? WhiteSpaceEnd(text, end) : end;
    }
    return done >= text.size() || on_text(done, text.size());
  }

 private:
  // The longest token that begins at `at`, and its end.
  const AddedToken* LongestAt(absl::string_view text, size_t at,
                              size_t* end) const {
    if (!begins_[static_cast<unsigned char>(text[at])]) return nullptr;
    return WalkFrom(text, at, end);
  }
  const AddedToken* WalkFrom(absl::string_view text, size_t at,
                             size_t* end) const;
  static bool IsSingleWord(absl::string_view text, size_t begin, size_t end);
  static size_t WhiteSpaceBegin(absl::string_view text, size_t end);
  static size_t WhiteSpaceEnd(absl::string_view text, size_t begin);

  std::vector<AddedToken> tokens_;
  std::array<bool, 256> begins_{};  // First bytes of tokens.
  // A tree of bytes. Node 0 is the root; key: node * 256 + byte.
  absl::flat_hash_map<int64_t, int32_t> children_;
  std::vector<int32_t> token_at_;  // By node; -1: no token ends here.
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_TOKENIZE_ADDED_TOKENS_H_
