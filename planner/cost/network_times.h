// Computes how long ranks take to communicate by the data sheet of their links:
// the levels of the network that a group spans, and the share of each level's
// rate that is reached.

#ifndef MILLRACE_PLANNER_COST_NETWORK_TIMES_H_
#define MILLRACE_PLANNER_COST_NETWORK_TIMES_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "planner/profile/profile.h"
#include "planner/program/ops.h"

namespace millrace {

// Ranks r, r + stride, r + 2 stride ...; with a second axis, each of them once
// for every multiple of its stride.
struct GroupPlacement {
  struct Axis {
    int64_t size = 1;
    int64_t stride = 1;
  };
  Axis inner;
  Axis outer;
  bool relays_to_ports = true;  // As Implementation says.
  int64_t size() const { return inner.size * outer.size; }
};

// Members of the group inside one domain of `devices` (0: all) devices.
int64_t MembersInside(const GroupPlacement& group, int32_t devices);

class NetworkTimes {
 public:
  // Borrows `levels`, innermost first, of which there is one at least. The
  // shares are of the rates that the data sheet states: of the innermost level,
  // and of the others.
  NetworkTimes(std::span<const NetworkLevel> levels, double link_share,
               double fabric_share)
      : levels_(levels), link_share_(link_share), fabric_share_(fabric_share) {}

  // kAllGather, kReduceScatter, kAllReduce, kContextRing or kExpertExchange,
  // whose traffic over each level of the network is shared by the group's
  // members inside the level below; `bytes` as the op's attributes state them.
  // With `experts_per_row`, rows of an exchange are for so many ranks at
  // random, cross each level once for each domain that has any of them, and are
  // passed on inside (DeepEP; DeepSeek-AI, 2024, section 3.2.2). The group has
  // more than one member.
  double CollectiveSeconds(OpKind kind, double bytes,
                           const GroupPlacement& group,
                           int64_t experts_per_row) const;
  // From one pipeline stage to the next, `stride` ranks on, in a pipeline of
  // `num_stages`: the slowest link that any of them has to take.
  double TransferSeconds(double bytes, int64_t stride,
                         int64_t num_stages) const;

 private:
  double BytesPerSecond(size_t level) const {
    return levels_[level].bytes_per_s *
           (level == 0 ? link_share_ : fabric_share_);
  }

  std::span<const NetworkLevel> levels_;
  double link_share_;
  double fabric_share_;
};

}  // namespace millrace

#endif  // MILLRACE_PLANNER_COST_NETWORK_TIMES_H_
