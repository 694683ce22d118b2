// The finalists of the search over all axes by passes: simulated, and ordered
// by list scheduling where their passes may run in any order.

#ifndef MILLRACE_PLANNER_SEARCH_PASS_FINALISTS_H_
#define MILLRACE_PLANNER_SEARCH_PASS_FINALISTS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "planner/cost/closed_form.h"
#include "planner/cost/op_cost.h"
#include "planner/search/all_axes_space.h"
#include "planner/search/search.h"
#include "planner/simulate/simulate_passes.h"

namespace millrace {

// What workers' steps are like, but for the order of the mesh axes.
Implementation ImplementationOf(bool pipeline_outermost);

bool IsExecutable(const ModelSpec& model, const Alternative& alternative);

struct ListedFloor {
  // By what share a plan of list scheduling could be faster at most than the
  // fastest found.
  double optimality_gap = 0;
  int64_t layouts_considered = 0;  // Whose floors were looked at.
};

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
  // Orders the passes of the fastest that were simulated by what they cost, of
  // those that workers cannot execute: for others
  // planner/search/listed_variant.h does, by instructions. All where the job
  // asks for it; nothing where it asks for another schedule. Where passes have
  // the last word (`passes_decide`), those that no order makes the fastest are
  // left as they are.
  absl::Status List(bool passes_decide, std::vector<Alternative>* best);
  // Of a job that asks for list scheduling, leaves what it ordered.
  // InvalidArgument where that is nothing.
  absl::Status LeaveListed(std::vector<Alternative>* best) const;
  // Adds to such, of which there is one at least, what else list scheduling
  // makes faster of the layouts whose floors (planner/search/listed_floor.h)
  // say that it might, and says how much these leave open.
  absl::StatusOr<ListedFloor> ListNearFloor(std::vector<Alternative>* best);

 private:
  // Such a layout, and what no order of it is below.
  struct Open {
    double floor_s;
    Alternative alternative;
  };

  StepModel& ModelOf(const Alternative& alternative) {
    return alternative.pipeline_outermost ? outermost_ : model_;
  }
  absl::StatusOr<ClusterStep> StepOf(const Alternative& alternative);
  void TakeSimulated(const ClusterSimulation& simulation,
                     Alternative* alternative) const;
  // What no order of the passes in the memory that there is ends below.
  absl::StatusOr<double> FloorOf(const Alternative& alternative);
  // Whether list scheduling makes a plan of it that is faster than `known_s`.
  absl::StatusOr<bool> ListOne(double known_s, Alternative* alternative);
  absl::Status AddOpen(const Layout& layout, bool pipeline_outermost,
                       std::vector<Open>* open);

  const PlannedSpace& planned_;
  const int64_t memory_limit_;
  const CostModel& cost_;
  StepModel& model_;
  StepModel& outermost_;
};

}  // namespace millrace

#endif  // MILLRACE_PLANNER_SEARCH_PASS_FINALISTS_H_
