#include "fault/replica_check.h"

#include <algorithm>
#include <map>
#include <utility>

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

// Adds what `votes` of the ranks of a group come to.
void Judge(const std::vector<Rank>& group, const std::vector<uint64_t>& votes,
           ReplicaVerdict& verdict) {
  const std::optional<uint64_t> majority = MajorityOf(votes);
  for (size_t k = 0; k < group.size(); ++k) {
    if (!majority.has_value()) {
      verdict.undecided.push_back(group[k]);
    } else if (votes[k] != *majority) {
      verdict.minority.push_back(group[k]);
    }
  }
}

void SortOnce(std::vector<Rank>& ranks) {
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
}

ReplicaVerdict Finished(ReplicaVerdict verdict) {
  verdict.agree = verdict.minority.empty() && verdict.undecided.empty();
  SortOnce(verdict.minority);
  SortOnce(verdict.undecided);
  return verdict;
}

}  // namespace

bool HasGathered(const Layout& layout) {
  return layout.shards_optimizer() && !layout.shards_parameters() &&
         layout.group_data() > 1;
}

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
    Judge(group, votes, verdict);
  }
  return Finished(std::move(verdict));
}

ReplicaVerdict CompareGathered(const Layout& layout,
                               absl::Span<const std::vector<uint64_t>> hashes) {
  CHECK(static_cast<int32_t>(hashes.size()) == layout.num_ranks());
  ReplicaVerdict verdict;
  for (int32_t i = 0; i < layout.num_ranks(); ++i) {
    // All groups of hybrid sharding have the same parameters.
    const std::vector<Rank> group = GroupMembers(layout, Group::kData, Rank{i});
    if (group.front() != Rank{i}) continue;
    for (int32_t slice = 0; slice < layout.group_data(); ++slice) {
      std::vector<uint64_t> votes;
      for (const Rank rank : group) {
        votes.push_back(hashes[ToInt(rank)].at(slice));
      }
      Judge(group, votes, verdict);
    }
  }
  return Finished(std::move(verdict));
}

}  // namespace millrace
