// The last stage of the search over all axes: simulates the executable
// finalists by instructions, and scales the other finalists' times so that all
// compare.

#ifndef MILLRACE_PLANNER_SEARCH_INSTRUCTION_FINALISTS_H_
#define MILLRACE_PLANNER_SEARCH_INSTRUCTION_FINALISTS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/cost/op_cost.h"
#include "planner/layout/layout.h"
#include "planner/layout/model.h"
#include "planner/program/program.h"
#include "planner/search/plan.h"
#include "planner/simulate/timeline.h"

namespace millrace {

// Whether workers can execute the layout and the profile prices its Programs.
bool CanBeLowered(const ModelSpec& model, const Alternative& alternative,
                  const CostModel& cost);

// A layout told by instructions.
struct LoweredStep {
  Layout layout;
  Prediction prediction;
  Timeline timeline;
  std::vector<Program> programs;  // By stage.
};

// Lowers and simulates by instructions what can be of `finalists`, which passes
// or the closed form have priced: in their order, as many as that stays quick
// for, and leaves out what would be too large (CheckProgramSize). Where few
// micro-batches tell that one is slower than another before it
// (planner/search/short_step.h), they suffice. The others'
// times are multiplied by what the two models differ by for those most like
// them that both have priced. Fills in Alternative::by_passes, and whether
// Programs fit; without any that can be lowered it changes nothing. Returns the
// fastest that was lowered in full and fits.
//
// Sorts: first what fits, of that what was simulated, fastest first.
absl::StatusOr<std::optional<LoweredStep>> PriceByInstructions(
    const ModelSpec& model, const CostModel& cost, int64_t memory_limit,
    std::vector<Alternative>* finalists);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_SEARCH_INSTRUCTION_FINALISTS_H_
