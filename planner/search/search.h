// Search: the best Layout for a job on the measured hardware, and why the
// others lost.

#ifndef MILLRACE_PLANNER_SEARCH_SEARCH_H_
#define MILLRACE_PLANNER_SEARCH_SEARCH_H_

#include <cstdint>
#include <stop_token>

#include "absl/status/statusor.h"
#include "planner/cost/op_cost.h"
#include "planner/job/job.h"
#include "planner/profile/profile.h"
#include "planner/search/plan.h"

namespace millrace {

struct SearchInput {
  JobSpec job;
  int32_t num_devices;
  // 0: the profile's. The job's resources.memory_per_device overrides both.
  int64_t device_memory_bytes = 0;
  // False: only layouts that workers can execute, for a run. True: also
  // plan-only layouts, and layouts that leave devices idle.
  bool allows_plan_only = false;
  // False: the closed form alone chooses, and stages stay inside replicas on
  // the network. For when time is short.
  bool simulates = true;
  // False: nothing is lowered, so passes have the last word. For when time is
  // short.
  bool lowers = true;
  // For a run: the layout uses so many devices at least and may leave others
  // idle. 0: it uses all devices.
  int32_t least_devices = 0;
  // True: devices wait for the plan. The first layout in the closed form's
  // order whose Programs fit is taken, without list-scheduled variants and ones
  // with copy engines unless the job asks for these.
  bool is_urgent = false;
  // Threads that price finalists side by side; 0: NumComputeThreads() (base).
  // Their number does not change the plan.
  int num_threads = 0;
  // Once a stop is requested, the search ends with Cancelled, within some
  // hundredths of a second (tests/bench/replan_bench.cc).
  std::stop_token stop = {};
};

// Whether the plan can only be one on paper: the job asks for what workers
// cannot execute, the profile is a data sheet's, or there are more devices than
// it was measured on and than a host has, and it knows the network between
// them.
bool IsPlanOnPaper(const JobSpec& job, int32_t num_devices,
                   const HardwareProfile& profile);

// Finds the fastest layout that fits. Branch and bound over all allowed layouts
// finds the best by the closed form (planner/search/closed_form_finalists.h).
// The best of those that cannot be lowered are simulated by passes
// (planner/search/pass_finalists.h). The best of those that can be lowered are
// simulated by instructions, and layouts whose Programs do not fit make way for
// others that need less memory (planner/search/instruction_finalists.h).
//
// Layouts that were lowered compare by instructions. One that cannot be lowered
// is chosen if passes say that it is faster than the best lowered one.
//
// Deterministic but for Plan::search_seconds. Returns InvalidArgument when no
// layout is possible or none fits, with the nearest one, what stands in its
// way, and the smallest change that helps; FailedPrecondition for several
// devices and a profile of one rank, or a profile of another precision or
// without tables, unless plan-only layouts are allowed; Cancelled once
// `input.stop` is requested.
absl::StatusOr<Plan> FindPlan(const SearchInput& input, const CostModel& cost);

// OK where the profile's device multiplies in the format. Else InvalidArgument
// naming device and key.
absl::Status CheckFormat(GemmFormat format, const HardwareProfile& profile);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_SEARCH_SEARCH_H_
