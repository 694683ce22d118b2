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

ReplicaVerdict CompareReplicas(const Layout& layout,
                               absl::Span<const uint64_t> hashes) {
  CHECK(static_cast<int32_t>(hashes.size()) == layout.num_ranks());
  ReplicaVerdict verdict;
  for (int32_t i = 0; i < layout.num_ranks(); ++i) {
    const std::vector<Rank> group = ReplicasOf(layout, Rank{i});
    if (group.front() != Rank{i}) continue;  // Each group once.
    std::map<uint64_t, size_t> votes;
    for (const Rank rank : group) ++votes[hashes[ToInt(rank)]];
    if (votes.size() == 1) continue;
    verdict.agree = false;
    const auto most = std::max_element(
        votes.begin(), votes.end(),
        [](const auto& a, const auto& b) { return a.second < b.second; });
    const bool decided = 2 * most->second > group.size();
    for (const Rank rank : group) {
      if (!decided) {
        verdict.undecided.push_back(rank);
      } else if (hashes[ToInt(rank)] != most->first) {
        verdict.minority.push_back(rank);
      }
    }
  }
  std::sort(verdict.minority.begin(), verdict.minority.end());
  std::sort(verdict.undecided.begin(), verdict.undecided.end());
  return verdict;
}

}  // namespace millrace
