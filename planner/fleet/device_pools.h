// A cluster whose devices are not all alike: nodes that have lost some, and
// devices of several types. Training is synchronous, so where shares are equal
// the slowest device sets the pace: the question is which to use, and how much
// work each gets (planner/fleet/uneven.h).

#ifndef MILLRACE_PLANNER_FLEET_DEVICE_POOLS_H_
#define MILLRACE_PLANNER_FLEET_DEVICE_POOLS_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "planner/job/job.h"
#include "planner/job/layout_space.h"
#include "planner/profile/profile.h"
#include "planner/search/search.h"

namespace millrace {

// Devices of one type.
struct PoolText {
  std::string profile;           // Empty: the one that the plan is for.
  std::vector<NodeGroup> nodes;  // At least one.
};

// Reads "122x8+3x7", nodes of so many devices each, or with types
// "h100-sxm:122x8,a100-80gb:16x8". InvalidArgument naming the part that is
// wrong, with an example; also where several pools lack a profile.
absl::StatusOr<std::vector<PoolText>> ParsePools(absl::string_view text);

int64_t NumDevices(std::span<const NodeGroup> nodes);

struct DevicePool {
  HardwareProfile profile;
  std::vector<NodeGroup> nodes;
};

// A device that is as slow and small as the slower of both in each respect, on
// the slower of both networks. InvalidArgument where a profile has no device or
// network section, or their networks have different levels.
absl::StatusOr<HardwareProfile> SlowerOf(const HardwareProfile& a,
                                         const HardwareProfile& b);

// The best plan over all axes that uses the fastest pool, the two fastest, and
// so on, all with equal shares of the work, or several with shares by their
// speed; `input`'s devices and nodes are those of the pools. The plan's first
// warning says which devices it uses, others how the other choices do.
// FindPlan's errors where none of them works.
absl::StatusOr<Plan> FindPlanForPools(const SearchInput& input,
                                      std::span<const DevicePool> pools);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_FLEET_DEVICE_POOLS_H_
