// Predicts a step of many micro-batches from two steps of few, which is cheap
// enough to discard slow layouts without lowering them in full.

#ifndef MILLRACE_PLANNER_SEARCH_SHORT_STEP_H_
#define MILLRACE_PLANNER_SEARCH_SHORT_STEP_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/cost/op_cost.h"
#include "planner/layout/layout.h"
#include "planner/layout/model.h"
#include "planner/search/plan.h"

namespace millrace {

struct ShortStep {
  Prediction prediction;             // Of the whole step.
  std::vector<int64_t> stage_bytes;  // StageBytes() of what was lowered.
  int64_t num_instructions = 0;      // That the Programs of all would have.

  // Whether the step surely takes longer than this: by more than simulating
  // all micro-batches could still change.
  bool IsSlowerThan(double step_time_s) const;
};

// Lowers and simulates two steps of few micro-batches and has each further one
// add what the last of these added: once a pipeline is full, it repeats itself.
// Nothing where the step has too few for that to be less work, for
// Schedule::kListScheduled, of which the order of passes is another with each
// number of micro-batches, and for pipelines under ZeRO 2 and 3, whose stages'
// traffic comes round only after many. Errors are those of lowering.
absl::StatusOr<std::optional<ShortStep>> PredictFromFewMicrobatches(
    const ModelSpec& model, const Layout& layout, const CostModel& cost);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_SEARCH_SHORT_STEP_H_
