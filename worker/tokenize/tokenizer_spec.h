// The content of a tokenizer.json, as plain values.

#ifndef MILLRACE_WORKER_TOKENIZE_TOKENIZER_SPEC_H_
#define MILLRACE_WORKER_TOKENIZE_TOKENIZER_SPEC_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace millrace {

// A token that is cut out of the text before anything else happens to it.
struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool single_word = false;  // Not next to a letter or digit.
  bool lstrip = false;       // Takes the white space before it.
  bool rstrip = false;
  bool normalized = false;  // Looked for in the normalized text.
  bool special = false;
};

struct TextPattern {
  std::string text;
  bool is_regex = false;  // Else `text` means itself.
};

enum class NormalizeKind : uint8_t {
  kNfc,
  kNfd,
  kNfkc,
  kNfkd,
  kLowercase,
  kReplace,  // `pattern` by `content`
  kPrepend,  // `content`, before a text that is not empty
  kStrip,    // White space, at the sides that are true
};
struct NormalizeStep {
  NormalizeKind kind;
  TextPattern pattern;
  std::string content;
  bool left = false;
  bool right = false;
};

// The treatment of the matches of a pattern that splits a text.
enum class SplitBehavior : uint8_t {
  kRemoved,
  kIsolated,  // Each match is a piece.
  kMergedWithPrevious,
  kMergedWithNext,
  kContiguous,  // Neighbouring matches are one piece.
};
enum class PrependScheme : uint8_t { kNever, kFirst, kAlways };

enum class PreTokenizeKind : uint8_t {
  kSplit,        // By `pattern`.
  kPrefixSpace,  // A space before pieces that do not begin with one.
  kMetaspace,    // Spaces become `replacement`, `scheme` puts one in front.
};
struct PreTokenizeStep {
  PreTokenizeKind kind;
  TextPattern pattern;
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;      // Text between matches counts as the match.
  std::string replacement;  // One character.
  PrependScheme scheme = PrependScheme::kNever;
};

struct BytePairSpec {
  std::vector<std::pair<std::string, int32_t>> pieces;  // Both sides unique.
  std::vector<std::pair<std::string, std::string>> merges;  // By rank.
  bool has_unknown = false;
  std::string unknown;  // The piece for characters that no piece holds.
  bool fuse_unknown = false;
  bool byte_fallback = false;
  bool ignore_merges = false;  // A word that is a piece is that piece.
};

enum class DecodeKind : uint8_t {
  kByteLevel,
  kByteFallback,
  kFuse,
  kStrip,    // Up to `start` and `stop` times `content`, of each token.
  kReplace,  // `pattern` by `content`.
  kMetaspace,
};
struct DecodeStep {
  DecodeKind kind;
  TextPattern pattern;
  std::string content;
  int64_t start = 0;
  int64_t stop = 0;
  bool drops_first = false;  // kMetaspace: the first token's, not a space.
};

struct TokenizerSpec {
  std::vector<AddedToken> added_tokens;
  std::vector<NormalizeStep> normalizer;
  std::vector<PreTokenizeStep> pre_tokenizer;
  // Pieces are spelt in 256 letters that stand for bytes.
  bool byte_level = false;
  BytePairSpec model;
  // Tokens that the template puts around a text.
  std::vector<int32_t> prefix;
  std::vector<int32_t> suffix;
  bool has_decoder = false;  // Without one, tokens are joined by spaces.
  std::vector<DecodeStep> decoder;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_TOKENIZE_TOKENIZER_SPEC_H_
