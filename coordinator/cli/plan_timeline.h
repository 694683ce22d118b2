// The predicted step as a file to look at.

#ifndef MILLRACE_COORDINATOR_CLI_PLAN_TIMELINE_H_
#define MILLRACE_COORDINATOR_CLI_PLAN_TIMELINE_H_

#include <string>

#include "absl/status/status.h"
#include "planner/explain/what_if.h"
#include "planner/search/plan.h"

namespace millrace {

// InvalidArgument for a name that WritePlanTimeline does not know.
absl::Status CheckTimelinePath(const std::string& path);

// Writes the step of `plan`, made for `planned`: NAME.html is a page that needs
// no other file, NAME.perfetto.json a trace for Perfetto, any other NAME.json
// JSON as a run directory's timelines/predicted.json.
absl::Status WritePlanTimeline(const std::string& path,
                               const PlanningCase& planned, const Plan& plan);

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_CLI_PLAN_TIMELINE_H_
