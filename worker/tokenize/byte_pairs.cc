#include "worker/tokenize/byte_pairs.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "worker/tokenize/byte_letters.h"
#include "worker/tokenize/unicode_door.h"

namespace millrace {
namespace {

constexpr uint64_t kNoMerge = ~uint64_t{0};
constexpr uint64_t kNoPair = ~uint64_t{0};
// Up to here looking through all pairs is faster than a heap.
constexpr size_t kShortWord = 32;
constexpr int kCacheBits = 15;  // 32 Ki words of 64 bytes.
constexpr size_t kMaxCachedBytes = 30;

uint64_t PairOf(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 |
         static_cast<uint32_t>(right);
}

uint64_t Scramble(uint64_t pair) { return pair * 0x9E3779B97F4A7C15; }

int32_t MergedId(uint64_t merge) {
  return static_cast<int32_t>(merge & 0xFFFFFFFF);
}

std::string FallbackPiece(int byte) {
  return absl::StrFormat("<0x%02X>", byte);
}

int32_t FirstCodePoint(absl::string_view text) {
  size_t at = 0;
  return NextCodePoint(text, &at);
}

bool IsOneCharacter(absl::string_view piece) {
  size_t at = 0;
  if (!piece.empty()) NextCodePoint(piece, &at);
  return at == piece.size() && !piece.empty();
}

}  // namespace

struct alignas(64) BytePairScratch::CachedWord {
  std::array<char, kMaxCachedBytes> text;
  uint8_t size = 0;  // Zero: an empty entry.
  uint8_t num_ids = 0;
  std::array<int32_t, 8> ids;
};

BytePairScratch::BytePairScratch() : cache_(size_t{1} << kCacheBits) {}
BytePairScratch::~BytePairScratch() = default;

absl::StatusOr<BytePairs> BytePairs::Make(const BytePairSpec& spec,
                                          bool byte_level) {
  BytePairs pairs;
  pairs.byte_level_ = byte_level;
  pairs.ignore_merges_ = spec.ignore_merges;
  pairs.has_unknown_ = spec.has_unknown;
  pairs.fuse_unknown_ = spec.fuse_unknown;
  RETURN_IF_ERROR(pairs.ReadCharacters(spec));
  pairs.ReadMerges(spec);
  if (!byte_level) pairs.FindCuts(spec);
  return pairs;
}

absl::Status BytePairs::ReadCharacters(const BytePairSpec& spec) {
  byte_ids_.fill(-1);
  fallback_ids_.fill(-1);
  const absl::flat_hash_map<std::string, int32_t> id_of(spec.pieces.begin(),
                                                        spec.pieces.end());
  std::string bytes;
  for (const auto& [piece, id] : spec.pieces) {
    if (byte_level_) {
      if (!BytesOfLetters(piece, &bytes)) continue;
      if (bytes.size() == 1) {
        byte_ids_[static_cast<unsigned char>(bytes[0])] = id;
      }
      if (ignore_merges_) words_.emplace(bytes, id);
    } else {
      if (IsOneCharacter(piece)) {
        const int32_t code_point = FirstCodePoint(piece);
        if (code_point < 128) {
          byte_ids_[code_point] = id;
        } else {
          other_ids_.emplace(code_point, id);
        }
      }
      if (ignore_merges_) words_.emplace(piece, id);
    }
  }
  if (spec.byte_fallback) {
    for (int byte = 0; byte < 256; ++byte) {
      const auto found = id_of.find(FallbackPiece(byte));
      if (found != id_of.end()) fallback_ids_[byte] = found->second;
    }
  }
  if (!spec.has_unknown) return absl::OkStatus();
  const auto found = id_of.find(spec.unknown);
  if (found != id_of.end()) {
    unknown_id_ = found->second;
    return absl::OkStatus();
  }
  const auto& known = byte_level_ ? byte_ids_ : fallback_ids_;
  if (std::find(known.begin(), known.end(), -1) != known.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.unk_token: `", spec.unknown,
                     "` is not in model.vocab, and some texts would need it"));
  }
  return absl::OkStatus();
}

void BytePairs::ReadMerges(const BytePairSpec& spec) {
  const absl::flat_hash_map<absl::string_view, int32_t> id_of(
      spec.pieces.begin(), spec.pieces.end());
  const size_t size = std::bit_ceil(2 * spec.merges.size() + 2);
  merges_.assign(size, {kNoPair, kNoMerge});
  merges_shift_ = 64 - std::countr_zero(size);
  uint64_t rank = 0;
  for (const auto& [left, right] : spec.merges) {
    const uint64_t pair = PairOf(id_of.at(left), id_of.at(right));
    const int32_t merged = id_of.at(left + right);
    size_t slot = Scramble(pair) >> merges_shift_;
    while (merges_[slot].first != kNoPair && merges_[slot].first != pair) {
      slot = (slot + 1) & (size - 1);
    }
    // A pair that is there twice has its last rank.
    merges_[slot] = {pair, rank++ << 32 | static_cast<uint32_t>(merged)};
  }
}

// Merging works on both sides of a cut independently where no merge has a left
// side that ends before it and a right side that begins behind it. All symbols
// but single characters (bytes of the fallback, the unknown piece) are spelt in
// several, so how a piece is spelt tells how it may begin and end.
void BytePairs::FindCuts(const BytePairSpec& spec) {
  const bool some_vanish =
      !has_unknown_ && std::find(fallback_ids_.begin(), fallback_ids_.end(),
                                 -1) != fallback_ids_.end();
  if (some_vanish) return;  // Then neighbours in the text are not all.
  std::fill_n(ascii_cuts_.begin(), ascii_cuts_.size(), false);
  for (int32_t c = 0; c < 128; ++c) ascii_cuts_[c] = byte_ids_[c] >= 0;
  for (const auto& [code_point, id] : other_ids_) {
    other_cuts_.insert(code_point);
  }
  const auto forbid = [&](int32_t code_point) {
    if (code_point < 128) {
      ascii_cuts_[code_point] = false;
    } else {
      other_cuts_.erase(code_point);
    }
  };
  if (has_unknown_ && IsOneCharacter(spec.unknown)) {
    forbid(FirstCodePoint(spec.unknown));
  }
  for (const auto& [left, right] : spec.merges) {
    const int32_t first = FirstCodePoint(right);
    const bool ends_in_special =
        (left.size() > 1 && left.back() == '>') ||
        (has_unknown_ && left.size() >= spec.unknown.size() &&
         left.compare(left.size() - spec.unknown.size(), left.npos,
                      spec.unknown) == 0);
    if (ends_in_special || LastCodePoint(left, left.size()) != first) {
      forbid(first);
    }
  }
}

void BytePairs::Encode(absl::string_view word, BytePairScratch* scratch,
                       std::vector<int32_t>* ids) const {
  if (ignore_merges_ && !byte_level_) {
    const auto found = words_.find(word);
    if (found != words_.end()) {
      ids->push_back(found->second);
      return;
    }
  }
  for (size_t begin = 0; begin < word.size();) {
    const size_t end = PartEnd(word, begin);
    EncodePart(word.substr(begin, end - begin), scratch, ids);
    begin = end;
  }
}

size_t BytePairs::PartEnd(absl::string_view word, size_t begin) const {
  if (byte_level_) return word.size();
  size_t at = begin;
  int32_t previous = NextCodePoint(word, &at);
  while (at < word.size()) {
    size_t next = at;
    const int32_t code_point = NextCodePoint(word, &next);
    const bool may_cut = code_point < 128 ? ascii_cuts_[code_point]
                                          : other_cuts_.contains(code_point);
    if (may_cut && previous != code_point) return at;
    previous = code_point;
    at = next;
  }
  return at;
}

void BytePairs::EncodePart(absl::string_view part, BytePairScratch* scratch,
                           std::vector<int32_t>* ids) const {
  BytePairScratch::CachedWord* cached = nullptr;
  if (part.size() <= kMaxCachedBytes) {
    const uint64_t hash = XXH3_64bits(part.data(), part.size());
    cached = &scratch->cache_[hash >> (64 - kCacheBits)];
    if (cached->size == part.size() &&
        std::memcmp(cached->text.data(), part.data(), part.size()) == 0) {
      ids->insert(ids->end(), cached->ids.begin(),
                  cached->ids.begin() + cached->num_ids);
      return;
    }
  }
  std::vector<int32_t>& merged = scratch->ids_;
  merged.clear();
  const auto found =
      ignore_merges_ && byte_level_ ? words_.find(part) : words_.end();
  if (found != words_.end()) {
    merged.push_back(found->second);
  } else {
    AppendSymbols(part, &merged);
    merged.size() <= kShortWord ? MergeShort(scratch) : MergeLong(scratch);
  }
  ids->insert(ids->end(), merged.begin(), merged.end());
  if (cached == nullptr || merged.size() > cached->ids.size()) return;
  std::memcpy(cached->text.data(), part.data(), part.size());
  cached->size = static_cast<uint8_t>(part.size());
  std::copy(merged.begin(), merged.end(), cached->ids.begin());
  cached->num_ids = static_cast<uint8_t>(merged.size());
}

// An unknown piece is deferred until a known one follows. So it comes after the
// bytes of a fallback, as in Hugging Face's library.
void BytePairs::AppendSymbols(absl::string_view part,
                              std::vector<int32_t>* ids) const {
  bool has_pending = false;
  std::string letter;
  for (size_t at = 0; at < part.size();) {
    const size_t begin = at;
    int32_t id = 0;
    absl::string_view bytes;
    if (byte_level_) {
      id = byte_ids_[static_cast<unsigned char>(part[at++])];
      if (id < 0) {
        letter.clear();
        AppendUtf8(ByteLetters()[static_cast<unsigned char>(part[begin])],
                   &letter);
        bytes = letter;
      }
    } else {
      const int32_t code_point = NextCodePoint(part, &at);
      if (code_point < 128) {
        id = byte_ids_[code_point];
      } else {
        const auto found = other_ids_.find(code_point);
        id = found == other_ids_.end() ? -1 : found->second;
      }
      bytes = part.substr(begin, at - begin);
    }
    if (id >= 0) {
      if (std::exchange(has_pending, false)) ids->push_back(unknown_id_);
      ids->push_back(id);
    } else if (!AppendFallback(bytes, ids) && has_unknown_) {
      if (has_pending && !fuse_unknown_) ids->push_back(unknown_id_);
      has_pending = true;
    }
  }
  if (has_pending) ids->push_back(unknown_id_);
}

bool BytePairs::AppendFallback(absl::string_view bytes,
                               std::vector<int32_t>* ids) const {
  for (const char byte : bytes) {
    if (fallback_ids_[static_cast<unsigned char>(byte)] < 0) return false;
  }
  for (const char byte : bytes) {
    ids->push_back(fallback_ids_[static_cast<unsigned char>(byte)]);
  }
  return true;
}

uint64_t BytePairs::MergeOf(int32_t left, int32_t right) const {
  const uint64_t pair = PairOf(left, right);
  size_t slot = Scramble(pair) >> merges_shift_;
  while (merges_[slot].first != pair) {
    if (merges_[slot].first == kNoPair) return kNoMerge;
    slot = (slot + 1) & (merges_.size() - 1);
  }
  return merges_[slot].second;
}

void BytePairs::MergeShort(BytePairScratch* scratch) const {
  std::vector<int32_t>& ids = scratch->ids_;
  std::vector<uint64_t>& merges = scratch->merges_;
  merges.clear();
  for (size_t i = 1; i < ids.size(); ++i) {
    merges.push_back(MergeOf(ids[i - 1], ids[i]));
  }
  while (!merges.empty()) {
    // Equal ranks are equal pairs, so the first of the least is the leftmost.
    const auto least = std::min_element(merges.begin(), merges.end());
    if (*least == kNoMerge) return;
    const auto at = least - merges.begin();
    ids[at] = MergedId(*least);
    ids.erase(ids.begin() + at + 1);
    merges.erase(least);
    const auto num_merges = static_cast<int64_t>(merges.size());
    if (at > 0) merges[at - 1] = MergeOf(ids[at - 1], ids[at]);
    if (at < num_merges) merges[at] = MergeOf(ids[at], ids[at + 1]);
  }
}

void BytePairs::Note(int32_t place, BytePairScratch* scratch) const {
  const BytePairScratch::Place& left = scratch->places_[place];
  if (left.next < 0) return;
  const uint64_t merge = MergeOf(left.id, scratch->places_[left.next].id);
  if (merge == kNoMerge) return;
  scratch->heap_.push_back(
      {static_cast<int64_t>((merge >> 32) << 32 | static_cast<uint32_t>(place)),
       MergedId(merge)});
  std::push_heap(
      scratch->heap_.begin(), scratch->heap_.end(),
      [](const auto& a, const auto& b) { return a.order > b.order; });
}

void BytePairs::MergeLong(BytePairScratch* scratch) const {
  std::vector<BytePairScratch::Place>& places = scratch->places_;
  std::vector<BytePairScratch::Candidate>& heap = scratch->heap_;
  const auto count = static_cast<int32_t>(scratch->ids_.size());
  places.clear();
  heap.clear();
  for (int32_t i = 0; i < count; ++i) {
    places.push_back({scratch->ids_[i], i - 1, i + 1 < count ? i + 1 : -1});
  }
  for (int32_t i = 0; i < count; ++i) Note(i, scratch);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), [](const auto& a, const auto& b) {
      return a.order > b.order;
    });
    const BytePairScratch::Candidate candidate = heap.back();
    heap.pop_back();
    const auto place = static_cast<int32_t>(candidate.order & 0xFFFFFFFF);
    BytePairScratch::Place& left = places[place];
    if (left.id < 0 || left.next < 0) continue;
    BytePairScratch::Place& right = places[left.next];
    // Since it was noted, the pair may have become another one.
    const uint64_t merge = MergeOf(left.id, right.id);
    if (merge == kNoMerge || MergedId(merge) != candidate.merged_id) continue;
    left.id = candidate.merged_id;
    right.id = -1;
    left.next = right.next;
    if (left.next >= 0) places[left.next].previous = place;
    if (left.previous >= 0) Note(left.previous, scratch);
    Note(place, scratch);
  }
  scratch->ids_.clear();
  for (int32_t i = 0; i >= 0; i = places[i].next) {
    scratch->ids_.push_back(places[i].id);
  }
}

}  // namespace millrace
