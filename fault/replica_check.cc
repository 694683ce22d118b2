#include "fault/replica_check.h"

#include <algorithm>
#include <map>

#include "base/check.h"

namespace millrace {

bool HasReplicas(const Layout& layout) {
  return layout.data > 1 && !layout.shards_optimizer();
}

ReplicaVerdict CompareReplicas(const Layout& layout,
                               absl::Span<const uint64_t> hashes) {
  CHECK(static_cast<int32_t>(hashes.size()) == layout.num_ranks());
  ReplicaVerdict verdict;
  for (int32_t i = 0; i < layout.num_ranks(); ++i) {
    const std::vector<Rank> group = GroupMembers(layout, Group::kData, Rank{i});
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
