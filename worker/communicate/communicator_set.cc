#include "worker/communicate/communicator_set.h"

#include <utility>

#include "base/check.h"
#include "base/status_macros.h"

namespace millrace {
namespace {

absl::StatusOr<std::unique_ptr<Communicator>> Make(
    CommunicatorKey key, const Layout& layout, Rank rank,
    CommunicatorFactory& factory) {
  if (GroupSize(layout, key.group) == 1) return nullptr;
  return factory.Create(key, GroupMembers(layout, key.group, rank), rank);
}

}  // namespace

// The same order on every rank, or two groups would wait for each other.
absl::StatusOr<CommunicatorSet> CommunicatorSet::Create(
    const Layout& layout, Rank rank, CommunicatorFactory& factory) {
  CommunicatorSet set;
  for (const Group group : CollectiveGroups(layout)) {
    ASSIGN_OR_RETURN(set.collectives_[group],
                     Make({.group = group}, layout, rank, factory));
  }
  ASSIGN_OR_RETURN(set.to_next_, Make({.group = Group::kPipeline, .channel = 0},
                                      layout, rank, factory));
  ASSIGN_OR_RETURN(
      set.to_previous_,
      Make({.group = Group::kPipeline, .channel = 1}, layout, rank, factory));
  ASSIGN_OR_RETURN(set.collectives_[Group::kWorld],
                   Make({.group = Group::kWorld}, layout, rank, factory));
  return set;
}

Communicator* CommunicatorSet::ForCollective(Group group) const {
  const auto found = collectives_.find(group);
  CHECK(found != collectives_.end())
      << "no collectives over the group " << GroupName(group);
  return found->second.get();
}

Communicator* CommunicatorSet::ForTransfer(Direction direction) const {
  return direction == Direction::kToNext ? to_next_.get() : to_previous_.get();
}

void CommunicatorSet::Abort() {
  for (const auto& [group, communicator] : collectives_) {
    if (communicator != nullptr) communicator->Abort();
  }
  for (Communicator* communicator : {to_next_.get(), to_previous_.get()}) {
    if (communicator != nullptr) communicator->Abort();
  }
}

}  // namespace millrace
