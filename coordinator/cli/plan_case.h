// What `millrace plan` plans for, from its options, and the plan.

#ifndef MILLRACE_COORDINATOR_CLI_PLAN_CASE_H_
#define MILLRACE_COORDINATOR_CLI_PLAN_CASE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/cli/plan_profile.h"
#include "planner/job.h"
#include "planner/search.h"
#include "planner/what_if.h"

namespace millrace {

struct CaseOptions {
  // "64", "122x8+3x7" or "h100-sxm:122x8,a100-80gb:16x8" (ParsePools,
  // planner/device_pools.h); empty: as the profile was measured.
  std::string devices;
  std::string profile_name;  // Empty: FindProfileFor's choice.
  bool all_axes = false;
};

// InvalidArgument for what the options cannot mean; else FindProfileFor's
// errors.
absl::StatusOr<PlanningCase> FindCase(const CaseOptions& options,
                                      const JobSpec& job, const Here& here);

// Over all axes where the case asks for it or nothing else can answer; of
// several types of devices those that are best. FindPlan's errors.
absl::StatusOr<Plan> PlanCase(const PlanningCase& planned);

// With 1, 2, ... nodes lost, the throughput of what is then the best layout
// over that of `plan`: GoodputInput's. Empty where the job considers no
// failures or there is one node.
absl::StatusOr<std::vector<double>> ThroughputByNodesLost(
    const PlanningCase& planned, const Plan& plan);

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_CLI_PLAN_CASE_H_
