// Answers "what if" questions about a plan: the same job with other devices,
// hardware or job keys.

#ifndef MILLRACE_PLANNER_EXPLAIN_WHAT_IF_H_
#define MILLRACE_PLANNER_EXPLAIN_WHAT_IF_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/job/job.h"
#include "planner/job/layout_space.h"
#include "planner/layout/layout.h"
#include "planner/profile/profile.h"
#include "planner/search/plan.h"

namespace millrace {

// The job and hardware that a plan is made for.
struct PlanningCase {
  JobSpec job;
  HardwareProfile profile;
  int32_t num_devices = 1;
  // As SearchInput's.
  bool allows_plan_only = false;
};

// Finds the plan for a case, like FindPlan() (planner/search/search.h).
using Planner = std::function<absl::StatusOr<Plan>(const PlanningCase&)>;

struct ValueChange {
  std::string key;     // The full one: "link.fabric" for link.inter_node.
  std::string before;  // "400 Gb/s".
  std::string after;
};

// Loads a profile by a name or path, as --profile does.
using ProfileLoader =
    std::function<absl::StatusOr<HardwareProfile>(const std::string& name)>;

// Applies settings "KEY=VALUE" to `planned`. Keys:
//   devices                  an integer
//   profile                  loaded first, whatever its place among them
//   device.bf16_flops, device.fp8_flops, device.fp4_flops    "1200TFLOP/s"
//   device.memory_bandwidth  "8TB/s"
//   device.memory            "141GB"
//   link.LEVEL, link.LEVEL.latency, link.LEVEL.devices
//                            "800Gb/s", "2us", an integer; LEVEL a network
//                            level of the profile, intra_node or inter_node
//   device.flops, link.all   a factor
//   any key of a job file    as there
// Rates and memory also take a factor, "1.25x", which needs no data sheet: it
// scales what was measured too (planner/profile/changed_hardware.h).
//
// Returns one change for each setting, in their order. Returns InvalidArgument
// that names the setting, what was expected and the nearest known keys. A key
// that is given twice is refused too, and so is a job whose keys contradict
// each other afterwards.
absl::StatusOr<std::vector<ValueChange>> ApplyWhatIf(
    std::span<const std::string> settings, const ProfileLoader& load_profile,
    PlanningCase* planned);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_EXPLAIN_WHAT_IF_H_
