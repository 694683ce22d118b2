// The second stage of the search: simulates finalists by passes, and applies
// list scheduling to those that cannot be lowered.

#ifndef MILLRACE_PLANNER_SEARCH_PASS_FINALISTS_H_
#define MILLRACE_PLANNER_SEARCH_PASS_FINALISTS_H_

#include <cstdint>
#include <stop_token>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "planner/cost/closed_form.h"
#include "planner/cost/op_cost.h"
#include "planner/search/finalist.h"
#include "planner/search/layout_tree.h"
#include "planner/simulate/simulate_passes.h"

namespace millrace {

// Describes how workers compute, for either order of the mesh axes.
Implementation ImplementationOf(bool pipeline_outermost);

class PassFinalists {
 public:
  // Borrows all but the limit, the bytes of a device. The models are of
  // ImplementationOf(false) and (true). Simulate() and List() end with
  // Cancelled, after the finalist at hand, once a stop is requested.
  PassFinalists(const LayoutTree& tree, int64_t memory_limit,
                const CostModel& cost, StepModel& model, StepModel& outermost,
                std::stop_token stop);

  // Simulates finalists that were not simulated yet, the fastest by the closed
  // form first, as many as stays quick: the order of passes and what its gaps
  // hide tell close layouts apart. Sorts: simulated ones first, fastest first,
  // as List() does too.
  absl::Status Simulate(std::vector<Finalist>* finalists);
  // Applies list scheduling to the fastest finalists that were simulated and
  // cannot be lowered (planner/search/listed_variant.h does it for those that
  // can), unless no order can make them the fastest. Does nothing if the job
  // asks for another schedule.
  absl::Status List(std::vector<Finalist>* finalists);

 private:
  StepModel& ModelOf(const Finalist& finalist) {
    return finalist.pipeline_outermost ? outermost_ : model_;
  }
  absl::StatusOr<PassStep> StepOf(const Finalist& finalist);
  void TakeSimulated(const PassSimulation& simulation,
                     Finalist* finalist) const;
  // A lower bound on the step time over all orders of the passes that fit into
  // memory.
  absl::StatusOr<double> LeastSeconds(const Finalist& finalist);
  // Applies list scheduling to one layout; leaves the layout as it is unless
  // its step then takes less than `known_s` seconds.
  absl::Status ListOne(double known_s, Finalist* finalist);

  const LayoutTree& tree_;
  const int64_t memory_limit_;
  const CostModel& cost_;
  StepModel& model_;
  StepModel& outermost_;
  const std::stop_token stop_;
};

}  // namespace millrace

#endif  // MILLRACE_PLANNER_SEARCH_PASS_FINALISTS_H_
