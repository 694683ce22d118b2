// The report of a run: one self-contained page, report.html, drawn from the
// files that docs/run_directory.md lists. docs/report.md says how to read it.

#ifndef MILLRACE_COORDINATOR_REPORT_REPORT_H_
#define MILLRACE_COORDINATOR_REPORT_REPORT_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "planner/job/job.h"
#include "planner/profile/profile.h"
#include "planner/search/plan.h"
#include "planner/simulate/timeline.h"

namespace millrace {

// Writes RUN_DIRECTORY/report.html, replacing an older one. A file that is
// missing or damaged makes its section of the page say so; it is not an error.
// NotFound if there is no such folder; InvalidArgument if it holds none of a
// run's files.
absl::Status WriteReport(const std::string& run_directory);

// The same page as text.
absl::StatusOr<std::string> ReportPage(const std::string& run_directory);

// The page's path.
std::string ReportPath(const std::string& run_directory);

// The run's key figures, the same that the page opens with.
struct RunSummary {
  std::string json;  // One object; the keys are listed in docs/report.md.
  std::string text;  // A few lines for people.
};
absl::StatusOr<RunSummary> SummarizeRun(const std::string& run_directory);

// The page of a plan that nothing has run yet: a predicted step, the choice and
// its alternatives, and the job. `timeline` is of the instructions that
// `program_texts` list, by stage, as ProgramToString prints them.
absl::StatusOr<std::string> PlanPage(
    const JobSpec& job, const HardwareProfile& profile, const Plan& plan,
    const Timeline& timeline, const std::vector<std::string>& program_texts);

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_REPORT_REPORT_H_
