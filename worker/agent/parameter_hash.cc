#include "worker/agent/parameter_hash.h"

#include <xxhash.h>

#include <bit>
#include <string>

#include "absl/strings/match.h"

namespace millrace {
namespace {

// The finalizer of SplitMix64 (Steele, Lea and Flood, 2014): every input bit
// reaches every output bit.
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

bool IsMoment(const StatePiece& piece) {
  return absl::EndsWith(piece.tensor, ".exp_avg") ||
         absl::EndsWith(piece.tensor, ".exp_avg_sq");
}

}  // namespace

uint64_t HashReplica(const std::vector<std::vector<uint64_t>>& checksums) {
  uint64_t hash = 0;
  for (const std::vector<uint64_t>& of_piece : checksums) {
    for (const uint64_t checksum : of_piece) hash = Mix(hash) ^ checksum;
  }
  return hash;
}

uint64_t HashOwnedParameters(const std::vector<StatePiece>& pieces) {
  uint64_t sum = 0;
  for (const StatePiece& piece : pieces) {
    if (!piece.is_owner || IsMoment(piece)) continue;
    const uint64_t name = XXH3_64bits(piece.tensor.data(), piece.tensor.size());
    const int64_t box_cols = piece.box.col_end - piece.box.col_begin;
    for (int64_t i = piece.begin; i < piece.end; ++i) {
      const int64_t row = piece.box.row_begin + i / box_cols;
      const int64_t col = piece.box.col_begin + i % box_cols;
      const uint64_t where =
          Mix(name + static_cast<uint64_t>(row * piece.cols + col));
      sum += Mix(where ^ std::bit_cast<uint32_t>(piece.data[i - piece.begin]));
    }
  }
  return sum;
}

}  // namespace millrace
