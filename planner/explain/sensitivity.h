// What better hardware would buy a job: the step time of its plan, and of the
// best plan, with one figure of the hardware improved at a time.

#ifndef MILLRACE_PLANNER_EXPLAIN_SENSITIVITY_H_
#define MILLRACE_PLANNER_EXPLAIN_SENSITIVITY_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/explain/what_if.h"
#include "planner/layout/layout.h"
#include "planner/search/plan.h"

namespace millrace {

struct SensitivityRow {
  std::string key;              // As --what-if takes it: "device.flops".
  double factor = 1;            // What it is multiplied by.
  double kept_step_time_s = 0;  // Of the chosen layout.
  // Of the layout that is then best, where that was searched.
  Layout best;
  double best_step_time_s = 0;
  bool best_changes = false;  // From the chosen layout.
};

// The keys that hardware is improved by: "device.flops",
// "device.memory_bandwidth", "device.memory", and "link.LEVEL" for each network
// level that the layout's devices reach beyond, or "link.all" where the profile
// states none; no link for one device.
std::vector<std::string> HardwareKeys(const PlanningCase& planned);

// Every key at 1.25 and 2 times, the layout kept and searched anew: as many
// searches. `chosen` is the plan for `planned`. Errors are `planner`'s.
absl::StatusOr<std::vector<SensitivityRow>> FindSensitivity(
    const PlanningCase& planned, const Plan& chosen, const Planner& planner);

// Every key but the memory's at 1.25 times with the layout kept;
// best_step_time_s stays 0. The Programs of a plan that has them are simulated
// again on such hardware; another plan's layout is pinned and planned again.
absl::StatusOr<std::vector<SensitivityRow>> FindNextStep(
    const PlanningCase& planned, const Plan& chosen, const Planner& planner);

// A row for each of FindSensitivity(). Lines end with \n.
std::string SensitivityTable(const Plan& chosen,
                             const std::vector<SensitivityRow>& rows);

// The figures that save the most: "device.flops +25 % saves 16.1 % of the step,
// link.fabric +25 % saves 1.2 %", in at most `columns` characters. `rows` are
// of FindNextStep().
std::string BriefLeverText(const Plan& chosen,
                           const std::vector<SensitivityRow>& rows,
                           size_t columns);

// All figures that save time, most first; and whether more memory would help,
// as far as the plan's alternatives tell. `rows` are of FindNextStep().
std::string NextStepText(const Plan& chosen,
                         const std::vector<SensitivityRow>& rows);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_EXPLAIN_SENSITIVITY_H_
