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
  ASSIGN_OR_RETURN(set.tensor_,
                   Make({.group = Group::kTensor}, layout, rank, factory));
  ASSIGN_OR_RETURN(set.data_,
                   Make({.group = Group::kData}, layout, rank, factory));
  ASSIGN_OR_RETURN(set.to_next_, Make({.group = Group::kPipeline, .channel = 0},
                                      layout, rank, factory));
  ASSIGN_OR_RETURN(
      set.to_previous_,
      Make({.group = Group::kPipeline, .channel = 1}, layout, rank, factory));
  ASSIGN_OR_RETURN(set.world_,
                   Make({.group = Group::kWorld}, layout, rank, factory));
  return set;
}

Communicator* CommunicatorSet::ForCollective(Group group) const {
  switch (group) {
    case Group::kTensor:
      return tensor_.get();
    case Group::kData:
      return data_.get();
    case Group::kWorld:
      return world_.get();
    case Group::kPipeline:
      break;
  }
  CHECK(false) << "no collectives over the pipeline axis";
  return nullptr;
}

Communicator* CommunicatorSet::ForTransfer(Direction direction) const {
  return direction == Direction::kToNext ? to_next_.get() : to_previous_.get();
}

void CommunicatorSet::Abort() {
  for (Communicator* communicator : {tensor_.get(), data_.get(), to_next_.get(),
                                     to_previous_.get(), world_.get()}) {
    if (communicator != nullptr) communicator->Abort();
  }
}

}  // namespace millrace
