// Byte-pair encoding of words: their characters (or bytes) are pieces, and
// neighbours are merged, the pair of lowest rank first and of equal ones the
// leftmost, until no pair has a rank.

#ifndef MILLRACE_WORKER_TOKENIZE_BYTE_PAIRS_H_
#define MILLRACE_WORKER_TOKENIZE_BYTE_PAIRS_H_

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/tokenize/tokenizer_spec.h"

namespace millrace {

// Room for one thread's work, and the ids of words that it met lately.
class BytePairScratch {
 public:
  BytePairScratch();
  ~BytePairScratch();
  BytePairScratch(const BytePairScratch&) = delete;
  BytePairScratch& operator=(const BytePairScratch&) = delete;

 private:
  friend class BytePairs;
  // A place in the word being merged. Places are linked, since merging removes
  // some.
  struct Place {
    int32_t id;
    int32_t previous;
    int32_t next;
  };
  // A pair that can be merged, or could when this was noted.
  struct Candidate {
    int64_t order;  // Rank, then place.
    int32_t merged_id;
  };
  struct CachedWord;

  std::vector<int32_t> ids_;
  std::vector<uint64_t> merges_;
  std::vector<Place> places_;
  std::vector<Candidate> heap_;
  std::vector<CachedWord> cache_;
};

// Thread-safe once made; a scratch is not.
class BytePairs {
 public:
  // With `byte_level`, words are bytes and pieces are spelt in the letters of
  // byte_letters.h; without, words are UTF-8. InvalidArgument if the unknown
  // piece is needed and not there.
  static absl::StatusOr<BytePairs> Make(const BytePairSpec& spec,
                                        bool byte_level);

  // Appends the ids of a word that is not empty.
  void Encode(absl::string_view word, BytePairScratch* scratch,
              std::vector<int32_t>* ids) const;

 private:
  BytePairs() = default;
  absl::Status ReadCharacters(const BytePairSpec& spec);
  void ReadMerges(const BytePairSpec& spec);
  void FindCuts(const BytePairSpec& spec);

  // Where the part of `word` that begins at `begin` ends.
  size_t PartEnd(absl::string_view word, size_t begin) const;
  void EncodePart(absl::string_view part, BytePairScratch* scratch,
                  std::vector<int32_t>* ids) const;
  void AppendSymbols(absl::string_view part, std::vector<int32_t>* ids) const;
  bool AppendFallback(absl::string_view bytes, std::vector<int32_t>* ids) const;

  // Rank, then merged id in the lower half; kNoMerge if the pair has none.
  uint64_t MergeOf(int32_t left, int32_t right) const;
  void MergeShort(BytePairScratch* scratch) const;
  void MergeLong(BytePairScratch* scratch) const;
  void Note(int32_t place, BytePairScratch* scratch) const;

  bool byte_level_ = false;
  bool ignore_merges_ = false;
  bool has_unknown_ = false;
  bool fuse_unknown_ = false;
  int32_t unknown_id_ = -1;
  // The ids of bytes, or of ASCII characters; -1: not a piece.
  std::array<int32_t, 256> byte_ids_;
  absl::flat_hash_map<int32_t, int32_t> other_ids_;  // By code point.
  std::array<int32_t, 256> fallback_ids_;  // For the pieces <0x00> to <0xFF>.
  absl::flat_hash_map<std::string, int32_t> words_;  // For ignore_merges.
  // An open hash table: pair, then rank and merged id.
  std::vector<std::pair<uint64_t, uint64_t>> merges_;
  int merges_shift_ = 0;
  // Characters before which a word may be cut, unless the same character comes
  // before them too: no merge joins another one to them.
  std::array<bool, 128> ascii_cuts_{};
  absl::flat_hash_set<int32_t> other_cuts_;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_TOKENIZE_BYTE_PAIRS_H_
