// The closed form of a training step on any number of devices: seconds and
// bytes of a layout from what its layers cost. The search ranks millions of
// layouts by it; `millrace evaluate` holds it to published runs. Bytes are in
// closed_form_memory.cc.

#ifndef MILLRACE_PLANNER_COST_CLOSED_FORM_H_
#define MILLRACE_PLANNER_COST_CLOSED_FORM_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "planner/cost/layer_work.h"
#include "planner/cost/step_memory.h"
#include "planner/layout/layout.h"
#include "planner/layout/model.h"
#include "planner/pipeline/passes.h"
#include "planner/profile/profile.h"

namespace millrace {

// Of the most loaded rank; the parts sum to step_time_s.
struct StepTime {
  double compute_s = 0;
  double recompute_s = 0;
  double exposed_tensor_s = 0;
  double exposed_context_s = 0;
  double exposed_expert_s = 0;
  double exposed_data_s = 0;
  double transfer_s = 0;  // Between stages, exposed.
  double bubble_s = 0;
  double optimizer_s = 0;
  double step_time_s() const {
    return compute_s + recompute_s + exposed_tensor_s + exposed_context_s +
           exposed_expert_s + exposed_data_s + transfer_s + bubble_s +
           optimizer_s;
  }
};

struct StepPrediction {
  StepTime time;
  StepMemory memory;
};

// Caches what layers cost under each (tensor, context, expert, micro-batch,
// ...), so one thread uses one StepModel.
class StepModel {
 public:
  // InvalidArgument for a profile without device or network, naming the missing
  // key, and for a model that ValidateModel refuses.
  static absl::StatusOr<StepModel> Create(const ModelSpec& model,
                                          const HardwareProfile& profile,
                                          const Implementation& implementation);
  StepModel(StepModel&&) noexcept;
  StepModel& operator=(StepModel&&) noexcept;
  ~StepModel();

  // `layout` must pass ValidatePlannedLayout. A layout whose layer costs are
  // cached takes about a microsecond.
  StepPrediction Predict(const Layout& layout);
  StepMemory PredictMemory(const Layout& layout);
  // Of each stage; PredictMemory is that of the fullest.
  std::vector<StepMemory> MemoryByStage(const Layout& layout);
  // Predict's time without what the data axis and the optimizer add: what
  // layouts that differ in `zero` alone have in common, and no more recompute
  // makes less.
  StepTime PredictPasses(const Layout& layout);
  // Seconds that PredictPasses() of no layout is below that differs from this
  // one in recompute alone and computes no less again in any stage.
  double PassesFloor(const Layout& layout);
  // What each op that can be computed again saves and takes, of one micro-batch
  // and the mean layer.
  std::vector<RecomputeCandidate> PriceRecompute(const Layout& layout) const;
  // The sets worth computing again, least first (RecomputeLadder): by what one
  // sequence's pass through a layer takes. So sets are the same for all
  // micro-batches of a cut, as floors of memory need.
  const std::vector<Recompute>& Recomputes(const Layout& layout);
  // Of each stage the quickest of `recomputes` with which it holds no more than
  // `memory_limit` bytes, of equals the first. Nothing where a stage fits with
  // none.
  std::optional<std::vector<Recompute>> FitRecompute(
      const Layout& layout, int64_t memory_limit,
      std::span<const Recompute> recomputes);
  // What every rank's process takes of its memory.
  int64_t OverheadOf(const Layout& layout) const;
  // Bytes that PredictMemory() of no layout is below that differs from this one
  // in `zero` and recompute alone, and has of `zeros` and in every stage of
  // `recomputes`: neither may be empty.
  StepMemory LeastMemory(const Layout& layout, std::span<const int32_t> zeros,
                         std::span<const Recompute> recomputes);
  // Likewise of layouts that have several chunks a stage besides: the fullest
  // stage holds no less than their mean.
  StepMemory LeastInterleavedMemory(const Layout& layout,
                                    std::span<const int32_t> zeros,
                                    std::span<const Recompute> recomputes);

  // What list scheduling and simulation start from; tensor, context and expert
  // communication that is exposed is part of the passes.
  PipelineCosts PassCosts(const Layout& layout);
  // Seconds of a rank's once-a-step work: reduction and gathering of the data
  // axis as if nothing hid them, and the optimizer.
  struct StepEnds {
    double gradient_reduction_s = 0;
    double parameter_gather_s = 0;
    double optimizer_s = 0;
  };
  StepEnds EndsOf(const Layout& layout);

 private:
  struct State;
  explicit StepModel(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace millrace

#endif  // MILLRACE_PLANNER_COST_CLOSED_FORM_H_
