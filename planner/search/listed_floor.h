// What no order of passes makes a step quicker than: of one step, and as
// planner/search/branch_and_bound.h searches by, of all layouts that list
// scheduling may order (planner/search/listed_order.h).

#ifndef MILLRACE_PLANNER_SEARCH_LISTED_FLOOR_H_
#define MILLRACE_PLANNER_SEARCH_LISTED_FLOOR_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "planner/cost/closed_form.h"
#include "planner/layout/layout.h"
#include "planner/pipeline/order_bound.h"
#include "planner/pipeline/passes.h"
#include "planner/profile/profile.h"
#include "planner/search/closed_form_evaluator.h"
#include "planner/simulate/simulate_passes.h"

namespace millrace {

// Seconds that no order of the passes of `step`, of which those of each stage
// hold no more than `memory_bytes` (by stage; empty: no limit) at once, ends it
// below where compute and communication slow each other down by `overlap`:
// LowerBoundOfMakespan, and of gathers, reductions and the optimizer what no
// pass can hide. Step::order plays no part.
double LeastStepSeconds(const ClusterStep& step,
                        const std::vector<int64_t>& memory_bytes,
                        const OverlapFactors& overlap);

// Of the step's transfers.
TransferTraffic TrafficOf(const ClusterStep& step,
                          const OverlapFactors& overlap);

// Says of a layout what no plan of its order and ZeRO stage is below, whatever
// its stages compute again and in whatever order its passes run, as far as the
// job allows: in time, by LeastStepSeconds, and in memory, with one micro-batch
// at a time. A search by it is one for the floor of all such plans, of which
// those of the job's schedule `list` are some.
class ListFloorEvaluator : public StepEvaluator {
 public:
  // Borrows space and model. Of all steps: what gathers and reductions passes
  // hide, as ClusterStep's, and what transfers cost them.
  ListFloorEvaluator(const PlannedSpace& space, StepModel& model,
                     int64_t memory_limit, double data_hidden_share,
                     const TransferTraffic& traffic);

  StepPrediction Predict(const Layout& layout) override;
  // The layout with what Predict() supposes that each stage computes again,
  // where that fits and differs between stages, as the job must allow.
  std::optional<Layout> QuickestByStage(const Layout& layout);
  int64_t PredictMemory(const Layout& layout) override {
    return Predict(layout).memory.total();
  }
  // What stages compute again is as it suits each already.
  std::optional<Layout> FitRecompute(const Layout&, int64_t) override {
    return std::nullopt;
  }
  double OrderFloor(const Layout& order) override;
  // One variant stands for all of its ZeRO stage; infinity if none of these
  // fits.
  double VariantFloor(const Layout& variant) override;
  int64_t OrderMemoryFloor(const Layout& order) override {
    return MeshMemoryFloor(order);
  }

 private:
  int64_t LeastMemory(const Layout& layout) override;
  StepPrediction FloorOf(Layout layout);

  const int64_t memory_limit_;
  const double data_hidden_share_;
  const TransferTraffic traffic_;
  // The last, which variants that differ in recompute have in common.
  Layout known_;
  std::optional<StepPrediction> known_floor_;
  std::vector<Recompute> known_stages_;  // Empty: some stage does not fit.
};

}  // namespace millrace

#endif  // MILLRACE_PLANNER_SEARCH_LISTED_FLOOR_H_
