// Finds the case that `millrace plan` plans for, from its options, and the
// plan.

#ifndef MILLRACE_COORDINATOR_CLI_PLAN_CASE_H_
#define MILLRACE_COORDINATOR_CLI_PLAN_CASE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "coordinator/cli/plan_profile.h"
#include "planner/explain/what_if.h"
#include "planner/fleet/objective_search.h"
#include "planner/job/job.h"
#include "planner/search/search.h"

namespace millrace {

struct CaseOptions {
  // A count, as "64"; empty: what DevicesFromOf() says.
  std::string devices;
  std::string profile_name;  // Empty: FindProfileFor's choice.
  bool plan_only = false;    // As PlanningCase::allows_plan_only.
};

// The source of the number of devices. kJob: one agent has so many
// (resources.devices_per_agent); the profile, which the job or an option names,
// may be of more or fewer. kProfile: the profile was measured with so many. The
// agents of such a job measured the one in this machine's cache.
enum class DevicesFrom { kOption, kJob, kProfile };
DevicesFrom DevicesFromOf(const CaseOptions& options, const JobSpec& job);
// The line that tells people where the device count came from. Empty when
// --devices gave it.
std::string DevicesFromText(DevicesFrom from, int32_t num_devices);

// InvalidArgument for what the options cannot mean; else FindProfileFor's
// errors.
absl::StatusOr<PlanningCase> FindCase(const CaseOptions& options,
                                      const JobSpec& job, const Here& here);

// The input of FindPlan() for this case. It allows plan-only layouts where the
// case does, or where the plan can only be one on paper (IsPlanOnPaper).
SearchInput SearchInputOf(const PlanningCase& planned);

// FindPlan's answer to SearchInputOf(). FindPlan's errors.
absl::StatusOr<Plan> PlanCase(const PlanningCase& planned);

// Returns the best plan for the job's objective, and its yield with failures if
// the job states them. Plans for fewer nodes are made too. Further questions
// about the plan are about its num_devices.
absl::StatusOr<ObjectivePlan> PlanForObjective(const PlanningCase& planned);

// Adds to a plan for `planned` that may be plan-only the costs of its other
// choices (planner/explain/explain_neighbours.h). False: left out, since the
// search priced so many layouts that fifteen more like it would take long.
absl::StatusOr<bool> AddOtherChoices(const PlanningCase& planned, Plan* plan);

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_CLI_PLAN_CASE_H_
