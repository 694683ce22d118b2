#include "fault/replica_check.h"

#include <algorithm>
#include <map>

#include "base/check.h"

namespace millrace {
namespace {

// Ranks that hold what `rank` holds, with it, ascending.
std::vector<Rank> ReplicasOf(const Layout& layout, Rank rank) {
  std::vector<Rank> ranks = GroupMembers(layout, Group::kData, rank);
  if (!layout.shards_optimizer()) return ranks;
  const auto slice = [&layout](Rank of) {
    return layout.slice_of(CoordinatesOf(layout, of).data);
  };
  std::erase_if(ranks, [&](Rank other) { return slice(other) != slice(rank); });
  return ranks;
}

}  // namespace

bool HasReplicas(const Layout& layout) {
  return layout.data > 1 &&
         (!layout.shards_optimizer() || layout.data_groups > 1);
}

std::vector<StatePiece> ReplicatedPieces(const std::vector<StatePiece>& state) {
  std::vector<StatePiece> replicated;
  for (const StatePiece& piece : state) {
    if (piece.is_current) replicated.push_back(piece);
  }
  return replicated;
}

std::optional<uint64_t> MajorityOf(absl::Span<const uint64_t> hashes) {
  std::map<uint64_t, size_t> votes;
  for (const uint64_t hash : hashes) {
    if (2 * ++votes[hash] > hashes.size()) return hash;
  }
  return std::nullopt;
}

ReplicaVerdict CompareReplicas(const Layout& layout,
                               absl::Span<const uint64_t> hashes) {
  CHECK(static_cast<int32_t>(hashes.size()) == layout.num_ranks());
  ReplicaVerdict verdict;
  for (int32_t i = 0; i < layout.num_ranks(); ++i) {
    const std::vector<Rank> group = ReplicasOf(layout, Rank{i});
    if (group.front() != Rank{i}) continue;  // Each group once.
    std::vector<uint64_t> votes;
    for (const Rank rank : group) votes.push_back(hashes[ToInt(rank)]);
    const std::optional<uint64_t> majority = MajorityOf(votes);
    for (size_t k = 0; k < group.size(); ++k) {
      if (!majority.has_value()) {
        verdict.undecided.push_back(group[k]);
      } else if (votes[k] != *majority) {
        verdict.minority.push_back(group[k]);
      }
    }
  }
  verdict.agree = verdict.minority.empty() && verdict.undecided.empty();
  std::sort(verdict.minority.begin(), verdict.minority.end());
  std::sort(verdict.undecided.begin(), verdict.undecided.end());
  return verdict;
}

}  // namespace millrace
