// The communicators that a layout's ranks share: who is in which, under which
// name.

#ifndef MILLRACE_PLANNER_PROGRAM_MEMBERSHIP_H_
#define MILLRACE_PLANNER_PROGRAM_MEMBERSHIP_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "planner/layout/layout.h"
#include "planner/program/program.h"

namespace millrace {

// One rank's place in one communicator.
struct Membership {
  Group group;  // kPipeline for transfers.
  // For transfers, this rank's lane; the other end has the matching one.
  std::optional<Lane> transfer_lane;
  std::vector<Rank> members;  // For transfers the earlier stage comes first.
  int32_t index;              // This rank's index among them.

  // For transfers, whether this rank sends.
  bool sends() const {
    return transfer_lane == Lane::kSendNext ||
           transfer_lane == Lane::kSendPrevious;
  }
  // The same on every member, and of no other communicator.
  std::string Key() const;
  // "tensor group (ranks 0, 1)", "transfers to the next stage (ranks 0, 4)".
  std::string Name() const;
};

// The group whose communicator carries the collectives of `group`. The data
// group uses the world's communicator if both have the same ranks, since they
// share a lane.
Group ServingGroup(const Layout& layout, Group group);

// The communicators that `rank` is a member of: first those for collectives,
// one for each group of several ranks, then those for transfers.
std::vector<Membership> MembershipsOf(const Layout& layout, Rank rank);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_PROGRAM_MEMBERSHIP_H_
