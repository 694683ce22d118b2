// The fastest layouts of a space too large to look at one by one: best-first
// branch and bound over planner/search/layout_tree.h. Its result is exact by
// the evaluator's own model; planner/search/search.h simulates it.

#ifndef MILLRACE_PLANNER_SEARCH_BRANCH_AND_BOUND_H_
#define MILLRACE_PLANNER_SEARCH_BRANCH_AND_BOUND_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <stop_token>
#include <vector>

#include "planner/cost/closed_form.h"
#include "planner/layout/layout.h"
#include "planner/search/layout_tree.h"
#include "planner/search/search_budget.h"

namespace millrace {

// Prices layouts, and gives lower bounds on its prices of all layouts that
// share the choices made so far (the steps of LayoutTree). Bounds need not be
// tight, but must never exceed a price: then the search proves its result.
class LayoutEvaluator {
 public:
  virtual ~LayoutEvaluator() = default;
  // `layout` must be one that the space allows.
  virtual StepPrediction Predict(const Layout& layout) = 0;
  // Bytes of the most loaded rank, as Predict() says, perhaps sooner.
  virtual int64_t PredictMemory(const Layout& layout) {
    return Predict(layout).memory.total();
  }
  // The variant in which each stage recomputes the least with which it fits.
  // Nothing if that is the same for all stages, or if some stage cannot fit.
  // Floors of an order bound these variants too.
  virtual std::optional<Layout> FitRecompute(const Layout& variant,
                                             int64_t memory_limit) = 0;

  // Seconds that one tensor x context group needs for the forward and backward
  // pass of one micro-batch through all layers, other stages' included.
  virtual double PassFloor(const Layout& sharding) = 0;
  // Seconds of a step.
  virtual double MeshFloor(const Layout& mesh) = 0;
  virtual double OrderFloor(const Layout& order) = 0;
  virtual double VariantFloor(const Layout& variant) = 0;
  // Bytes of the most loaded rank, also of any larger micro-batch.
  virtual int64_t ShardingMemoryFloor(const Layout& sharding) = 0;
  // The same bound, also with fewer replicas.
  virtual int64_t MeshMemoryFloor(const Layout& mesh) = 0;
  // The same bound for this order of these replicas alone.
  virtual int64_t OrderMemoryFloor(const Layout& order) {
    return MeshMemoryFloor(order);
  }
};

struct SearchLimits {
  int32_t num_kept = kSearchBudget.kept;  // Best layouts returned.
  // Slower ones are not wanted.
  double slowest_s = std::numeric_limits<double>::infinity();
  // Layouts priced at most. Counted, not timed, so that equal searches end
  // alike.
  int64_t num_predictions = kSearchBudget.priced;
  // Once a stop is requested, the search ends as if it had priced all.
  std::stop_token stop = {};
};

struct RankedLayout {
  Layout layout;
  StepPrediction prediction;
};

struct FastestLayouts {
  std::vector<RankedLayout> best;  // Layouts that fit, fastest first.
  // How much faster than best.front() a layout could be at most, by the
  // evaluator's model; 0 means that it is proven to be best.
  double optimality_gap = 0;
  // A lower bound on the step times of all wanted layouts; infinity if there
  // are none.
  double floor_s = std::numeric_limits<double>::infinity();
  int64_t layouts_considered = 0;  // Priced in full.
  bool exhausted = false;          // Ended by num_predictions or a stop.
};

// For each ZeRO stage, all stages of a pipeline recompute the same ops, or each
// stage those that LayoutEvaluator::FitRecompute() chooses.
//
// The search is deterministic. Among layouts that take equally long the simpler
// comes first: fewer shards of all kinds, less sharded over replicas, less
// recomputed.
FastestLayouts FindFastestLayouts(const LayoutTree& tree, int64_t memory_limit,
                                  const SearchLimits& limits,
                                  LayoutEvaluator& evaluator);

// The layout of the space that needs the least memory, with the same recompute
// in all stages; the fastest among equals. Nothing if the space is empty. Once
// a stop is requested, this function and the next return early with whatever
// they have found.
std::optional<RankedLayout> FindSmallestLayout(
    const LayoutTree& tree, LayoutEvaluator& evaluator,
    const std::stop_token& stop = {});

bool AnyLayoutFits(const LayoutTree& tree, int64_t memory_limit,
                   LayoutEvaluator& evaluator,
                   const std::stop_token& stop = {});

}  // namespace millrace

#endif  // MILLRACE_PLANNER_SEARCH_BRANCH_AND_BOUND_H_
