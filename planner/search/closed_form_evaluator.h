// The evaluator that planner/search/branch_and_bound.h uses with the closed
// form (StepModel): prices of layouts, and lower bounds for groups of layouts.

#ifndef MILLRACE_PLANNER_SEARCH_CLOSED_FORM_EVALUATOR_H_
#define MILLRACE_PLANNER_SEARCH_CLOSED_FORM_EVALUATOR_H_

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "planner/cost/closed_form.h"
#include "planner/search/branch_and_bound.h"
#include "planner/search/layout_tree.h"

namespace millrace {

// Floors leave out the data axis and the optimizer, and recompute only what the
// job pins. They count the passes of the slowest stage, once for every
// micro-batch, and the bubble that the order leaves.
class StepEvaluator : public LayoutEvaluator {
 public:
  // Borrows both.
  StepEvaluator(const LayoutTree& tree, StepModel& model);

  StepPrediction Predict(const Layout& layout) override {
    return model_.Predict(layout);
  }
  int64_t PredictMemory(const Layout& layout) override {
    return model_.PredictMemory(layout).total();
  }
  std::optional<Layout> FitRecompute(const Layout& variant,
                                     int64_t memory_limit) override;
  double PassFloor(const Layout& sharding) override;
  double MeshFloor(const Layout& mesh) override;
  double OrderFloor(const Layout& order) override;
  double VariantFloor(const Layout& variant) override {
    return model_.PredictPasses(variant).step_time_s();
  }
  int64_t ShardingMemoryFloor(const Layout& sharding) override;
  int64_t MeshMemoryFloor(const Layout& mesh) override;
  int64_t OrderMemoryFloor(const Layout& order) override;

 private:
  // The least bytes over all ZeRO stages and recompute sets that the job
  // allows, without those of the process itself.
  int64_t LeastMemory(const Layout& layout);
  // The least of what the layout takes with any gradient reduction that the
  // search may choose.
  StepMemory LeastOfReductions(
      const Layout& layout,
      absl::FunctionRef<StepMemory(const Layout& layout)> memory_of);
  bool MayInterleave(int32_t pipeline) const;

  const LayoutTree& tree_;
  StepModel& model_;
  // The sets of ops that a stage may recompute under one way of sharding
  // layers.
  struct RecomputeSets {
    std::vector<Recompute> allowed;      // By their cost.
    Recompute least = Recompute::kFull;  // The ops in all of them.
  };
  const RecomputeSets& Sets(const Layout& layout);

  std::vector<int32_t> zeros_;  // ZeRO stages that the job allows.
  bool fits_stages_;  // Whether the job leaves open which stage has which.
  // By tensor, context, expert and expert_tensor.
  std::map<std::array<int32_t, 4>, RecomputeSets> sets_;
};

}  // namespace millrace

#endif  // MILLRACE_PLANNER_SEARCH_CLOSED_FORM_EVALUATOR_H_
