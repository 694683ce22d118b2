// A run directory read back for the report: every file checked, thinned to what
// a page can draw, and gathered into one JSON value.

#ifndef MILLRACE_COORDINATOR_REPORT_REPORT_DATA_H_
#define MILLRACE_COORDINATOR_REPORT_REPORT_DATA_H_

#include <string>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "planner/job/job.h"
#include "planner/profile/profile.h"
#include "planner/simulate/timeline.h"

namespace millrace {

// Keys: "run" (the folder's name), "job" (figures of job.yaml), "machine",
// "job_yaml", "plan", "steps", "time", "predicted", "measured", "programs",
// "events", "result" as far as their files were readable, "summary", and
// "missing": [{"file", "reason"}] for those that were not.
//
// "steps" holds columns: {"step": [...], "loss": [...], ...}. If a step ran
// again after a recovery, its last record counts. At most 2000 steps are kept,
// evenly spread, and every one with a validation loss. Its "evaluation" holds
// all losses of the held-out sets: {NAME: [[step, loss], ...]}.
//
// NotFound if there is no such folder; InvalidArgument if it holds none of a
// run's files.
absl::StatusOr<nlohmann::json> CollectReportData(
    const std::string& run_directory);

// Each returns what the page shows: "job", "machine", and "predicted" or
// "measured", which is cut to the first ranks.
nlohmann::json JobData(const JobSpec& job);
nlohmann::json MachineData(const HardwareProfile& profile);
nlohmann::json TimelineData(const Timeline& timeline);

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_REPORT_REPORT_DATA_H_
