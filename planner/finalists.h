// The last word of the search over all axes: its finalists on one scale, that
// of instructions.

#ifndef MILLRACE_PLANNER_FINALISTS_H_
#define MILLRACE_PLANNER_FINALISTS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "planner/cost.h"
#include "planner/model.h"
#include "planner/search.h"

namespace millrace {

// Whether workers can execute the layout and the profile prices its Programs.
bool CanBeLowered(const ModelSpec& model, const Alternative& alternative,
                  const CostModel& cost);

// Lowers and simulates by instructions what can be of `finalists`, which passes
// or the closed form have priced: in their order, as many as that stays quick
// for, and leaves out what would be too large (CheckProgramSize). The others'
// times are multiplied by what the two models differ by for those most like
// them that both have priced. Fills in Alternative::by_passes, and whether
// Programs fit; without any that can be lowered it changes nothing.
//
// Sorts: first what fits, of that what was simulated, fastest first.
absl::Status PriceByInstructions(const ModelSpec& model, const CostModel& cost,
                                 int64_t memory_limit,
                                 std::vector<Alternative>* finalists);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_FINALISTS_H_
