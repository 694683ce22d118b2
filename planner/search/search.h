// Search: the best Layout for a job on the measured hardware, and why the
// others lost.

#ifndef MILLRACE_PLANNER_SEARCH_SEARCH_H_
#define MILLRACE_PLANNER_SEARCH_SEARCH_H_

#include <cstdint>

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
  // Also layouts and models that workers cannot execute yet, ranked by
  // planner/cost/closed_form.h; not all devices need be used.
  bool all_axes = false;
  // False: of all axes the closed form alone chooses, and stages stay inside
  // replicas, where time is short.
  bool simulates = true;
  // False: of all axes the simulation of passes has the last word, also on what
  // could be lowered, where time is short.
  bool lowers = true;
};

// Whether only a search of all axes can answer: the job asks for what workers
// cannot execute, the profile is a data sheet's, or there are more devices than
// it was measured on and it knows the network between them.
bool NeedsAllAxes(const JobSpec& job, int32_t num_devices,
                  const HardwareProfile& profile);

// Evaluates every layout the job's constraints allow in closed form, lowers and
// simulates the best, and takes the fastest simulated one that fits. Where one
// does not fit, those that shard more of it or compute more again are evaluated
// likewise.
//
// With all_axes planner/search/all_axes_search.h chooses; where the profile has
// tables, those of its best that workers can execute are lowered and simulated
// too, and the fastest by instructions wins
// (planner/search/instruction_finalists.h).
//
// Deterministic but for Plan::search_seconds. Returns InvalidArgument when no
// layout is possible or none fits, with the nearest one, what stands in its
// way, and the smallest change that helps; FailedPrecondition for several
// devices and a profile of one rank, or a profile of another precision or
// without tables.
absl::StatusOr<Plan> FindPlan(const SearchInput& input, const CostModel& cost);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_SEARCH_SEARCH_H_
