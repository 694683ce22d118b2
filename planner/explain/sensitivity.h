// Computes what better hardware would gain: the step time of the plan, and of
// the best plan, with one figure of the hardware improved at a time.

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
  std::string key;              // A key of --what-if: "device.flops".
  double factor = 1;            // The factor on the figure.
  double kept_step_time_s = 0;  // Step time of the chosen layout.
  // The best layout on the improved hardware, if it was searched.
  Layout best;
  double best_step_time_s = 0;
  bool best_changes = false;  // It is not the chosen one.
};

// Returns the keys that are improved: "device.flops",
// "device.memory_bandwidth", "device.memory", and "link.LEVEL" for each network
// level that the layout's devices use. A profile without levels has "link.all"
// instead. One device has no link.
std::vector<std::string> HardwareKeys(const PlanningCase& planned);

// Improves every key by 1.25 and by 2, once with the layout kept and once with
// a new search. So it takes as many searches as rows. `chosen` is the plan for
// `planned`. Errors are those of `planner`.
absl::StatusOr<std::vector<SensitivityRow>> FindSensitivity(
    const PlanningCase& planned, const Plan& chosen, const Planner& planner);

// Improves every key but the memory's by 1.25 with the layout kept;
// best_step_time_s stays 0. A plan with Programs has them simulated again;
// otherwise its layout is pinned and planned again.
absl::StatusOr<std::vector<SensitivityRow>> FindNextStep(
    const PlanningCase& planned, const Plan& chosen, const Planner& planner);

// Writes a line for each row of FindSensitivity(). Lines end with \n.
std::string SensitivityTable(const Plan& chosen,
                             const std::vector<SensitivityRow>& rows);

// Names the figures that save the most in at most `columns` characters:
// "device.flops +25 % saves 16.1 % of the step, link.fabric +25 % saves 1.2 %".
// `rows` come from FindNextStep().
std::string BriefLeverText(const Plan& chosen,
                           const std::vector<SensitivityRow>& rows,
                           size_t columns);

// Names all figures that save time, most first, and says whether more memory
// would help, as far as the plan's alternatives tell. `rows` come from
// FindNextStep().
std::string NextStepText(const Plan& chosen,
                         const std::vector<SensitivityRow>& rows);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_EXPLAIN_SENSITIVITY_H_
