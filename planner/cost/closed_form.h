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
#include "planner/cost/op_cost.h"
#include "planner/cost/step_memory.h"
#include "planner/layout/layout.h"
#include "planner/layout/model.h"
#include "planner/pipeline/passes.h"
#include "planner/profile/profile.h"

namespace millrace {

// Times of the most loaded rank; the parts sum to step_time_s.
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
  // InvalidArgument for a model that ValidateModel refuses, and for a profile
  // that CostModel::Create does.
  static absl::StatusOr<StepModel> Create(const ModelSpec& model,
                                          CostModel cost,
                                          const Implementation& implementation);
  static absl::StatusOr<StepModel> Create(const ModelSpec& model,
                                          const HardwareProfile& profile,
                                          const Implementation& implementation);
  // The same model with Implementation::pipeline_outermost. It shares what this
  // one caches, so one thread uses both.
  StepModel WithPipelineOutermost() const;
  StepModel(StepModel&&) noexcept;
  StepModel& operator=(StepModel&&) noexcept;
  ~StepModel();

  const CostModel& cost() const;

  // FailedPrecondition for a layout that the profile cannot price, for which
  // nothing else may be asked: without a data sheet, one that
  // CheckTablesPrice() refuses.
  absl::Status CheckPrices(const Layout& layout) const;

  // `layout` must pass ValidatePlannedLayout. A layout whose layer costs are
  // cached takes about a microsecond.
  StepPrediction Predict(const Layout& layout);
  StepMemory PredictMemory(const Layout& layout);
  // The memory of each stage; PredictMemory() is that of the fullest.
  std::vector<StepMemory> MemoryByStage(const Layout& layout);
  // The step time without the data axis and the optimizer. Layouts that differ
  // only in `zero` share it, and more recompute never lowers it.
  StepTime PredictPasses(const Layout& layout);
  // A lower bound in seconds on PredictPasses() over all layouts that recompute
  // at least as much as this one in every stage and are otherwise equal.
  double PassesFloor(const Layout& layout);
  // For each op that can be recomputed, the bytes that this saves and the
  // seconds that it takes, for one micro-batch and the mean layer.
  std::vector<RecomputeCandidate> PriceRecompute(const Layout& layout) const;
  // The sets of ops worth recomputing, the least first (RecomputeLadder). Their
  // prices are those of one sequence's pass through a layer. So the sets are
  // the same for all micro-batch sizes of one sharding, as lower bounds on
  // memory need.
  const std::vector<Recompute>& Recomputes(const Layout& layout);
  // For each stage the fastest of `recomputes` with which it holds no more than
  // `memory_limit` bytes; among equally fast ones, the first. Nothing if some
  // stage fits with none of them.
  std::optional<std::vector<Recompute>> FitRecompute(
      const Layout& layout, int64_t memory_limit,
      std::span<const Recompute> recomputes);
  // The bytes of device memory that the process of a rank itself takes.
  int64_t OverheadOf(const Layout& layout) const;
  // A lower bound on PredictMemory() over all layouts that differ from this one
  // only in `zero` and recompute, with `zero` taken from `zeros` and the
  // recompute of every stage from `recomputes`. Neither list may be empty.
  StepMemory LeastMemory(const Layout& layout, std::span<const int32_t> zeros,
                         std::span<const Recompute> recomputes);
  // The same bound over layouts that also have several chunks a stage. The
  // fullest stage holds at least the mean of all stages.
  StepMemory LeastInterleavedMemory(const Layout& layout,
                                    std::span<const int32_t> zeros,
                                    std::span<const Recompute> recomputes);

  // The costs of passes that list scheduling and simulation start from. Exposed
  // communication of the tensor, context and expert axes is part of the passes.
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
