// Simulates the finalists of the search over all axes by passes, and applies
// list scheduling to those whose order is free.

#ifndef MILLRACE_PLANNER_SEARCH_PASS_FINALISTS_H_
#define MILLRACE_PLANNER_SEARCH_PASS_FINALISTS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "planner/cost/closed_form.h"
#include "planner/cost/op_cost.h"
#include "planner/layout/model.h"
#include "planner/search/all_axes_space.h"
#include "planner/search/plan.h"
#include "planner/simulate/simulate_passes.h"

namespace millrace {

// Describes how workers compute, for either order of the mesh axes.
Implementation ImplementationOf(bool pipeline_outermost);

bool IsExecutable(const ModelSpec& model, const Alternative& alternative);

class PassFinalists {
 public:
  // Borrows all; the models are of ImplementationOf(false) and (true).
  PassFinalists(const PlannedSpace& planned, int64_t memory_limit,
                const CostModel& cost, StepModel& model, StepModel& outermost);

  // Simulates as many of `best` that are not yet, the fastest by the closed
  // form first, as that stays quick for: the order of passes and what its gaps
  // hide tell close layouts apart. Sorts: what was simulated first, fastest
  // first, as the following do too.
  absl::Status Simulate(std::vector<Alternative>* best);
  // Applies list scheduling to the fastest layouts that were simulated and that
  // workers cannot execute. For layouts that they can,
  // planner/search/listed_variant.h does it by instructions. If the job asks
  // for list scheduling, applies it to executable layouts too; if the job asks
  // for another schedule, does nothing. Where passes have the last word
  // (`passes_decide`), leaves out layouts that no order makes the fastest.
  absl::Status List(bool passes_decide, std::vector<Alternative>* best);
  // If the job asks for list scheduling, leaves only the layouts that it
  // ordered. Returns InvalidArgument if there are none.
  absl::Status LeaveListed(std::vector<Alternative>* best) const;

 private:
  StepModel& ModelOf(const Alternative& alternative) {
    return alternative.pipeline_outermost ? outermost_ : model_;
  }
  absl::StatusOr<ClusterStep> StepOf(const Alternative& alternative);
  void TakeSimulated(const ClusterSimulation& simulation,
                     Alternative* alternative) const;
  // A lower bound on the step time over all orders of the passes that fit into
  // memory.
  absl::StatusOr<double> LeastSeconds(const Alternative& alternative);
  // Applies list scheduling to one layout; leaves the layout as it is unless
  // its step then takes less than `known_s` seconds.
  absl::Status ListOne(double known_s, Alternative* alternative);

  const PlannedSpace& planned_;
  const int64_t memory_limit_;
  const CostModel& cost_;
  StepModel& model_;
  StepModel& outermost_;
};

}  // namespace millrace

#endif  // MILLRACE_PLANNER_SEARCH_PASS_FINALISTS_H_
