// Predicts a step of many micro-batches from two steps of few, so that the
// search lowers only its choice in full.

#ifndef MILLRACE_PLANNER_SEARCH_SHORT_STEP_H_
#define MILLRACE_PLANNER_SEARCH_SHORT_STEP_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <stop_token>

#include "absl/status/statusor.h"
#include "planner/cost/op_cost.h"
#include "planner/layout/layout.h"
#include "planner/layout/model.h"
#include "planner/search/plan.h"

namespace millrace {

struct ShortStep {
  // The prediction of the whole step. It has bytes alone if these exceed the
  // memory limit.
  Prediction prediction;
  int64_t num_instructions = 0;  // Instructions lowered for it.
};

// The micro-batches of the longer of the two steps that the function below
// lowers for the layout. Nothing where it predicts nothing.
std::optional<int32_t> MostShortMicrobatches(const Layout& layout);

// Lowers and simulates two steps of few micro-batches. Each further micro-batch
// adds what the last ones of these added: once a pipeline is full, it repeats
// itself. The result is within 0.005 % of simulating all micro-batches
// (tests/planner/search/short_step_test.cc).
//
// Nothing where the step has too few micro-batches for that to be less work;
// for Schedule::kListScheduled, whose order of passes is another for each
// number of micro-batches; and for pipelines under ZeRO 2 and 3, whose traffic
// repeats itself only after many. Errors are those of lowering;
// Cancelled once a stop is requested.
absl::StatusOr<std::optional<ShortStep>> PredictFromFewMicrobatches(
    const ModelSpec& model, const Layout& layout, const CostModel& cost,
    int64_t memory_limit = std::numeric_limits<int64_t>::max(),
    const std::stop_token& stop = {});

}  // namespace millrace

#endif  // MILLRACE_PLANNER_SEARCH_SHORT_STEP_H_
