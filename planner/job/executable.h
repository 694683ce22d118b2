// Finds the parts of a job that can be planned but not executed: models without
// ops, number formats without kernels, mesh axes without communicators and
// schedules that planner/lower does not emit. Formats, axes and schedules
// follow from their tables (planner/layout).

#ifndef MILLRACE_PLANNER_JOB_EXECUTABLE_H_
#define MILLRACE_PLANNER_JOB_EXECUTABLE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "planner/job/job.h"
#include "planner/layout/layout.h"
#include "planner/layout/model.h"

namespace millrace {

// A key of the job whose value no worker executes.
struct PlanOnlyKey {
  std::string key;         // "layout.context".
  std::string value;       // "2".
  std::string executable;  // The value that workers execute instead: "1".
};
std::vector<PlanOnlyKey> PlanOnlyKeys(const ModelSpec& model);
std::vector<PlanOnlyKey> PlanOnlyKeys(const Layout& layout);
// Looks at the pinned keys only, since the planner chooses the open ones.
std::vector<PlanOnlyKey> PlanOnlyKeys(const LayoutConstraints& pinned);

// Pins every axis of which workers execute one value alone to that value,
// whatever it was.
void PinExecutableAxes(LayoutConstraints* constraints);

// OK if workers can execute it. Else InvalidArgument naming every key of the
// job that stands against it, with its value and what workers execute instead.
absl::Status CheckExecutable(const JobSpec& job);
absl::Status CheckExecutable(const ModelSpec& model, const Layout& layout);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_JOB_EXECUTABLE_H_
