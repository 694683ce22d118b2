#include "planner/step_evaluator.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

namespace millrace {
namespace {

// Seconds in which the slowest stage is not waiting.
double BusySeconds(const StepTime& time) {
  return time.step_time_s() - time.bubble_s - time.transfer_s;
}

}  // namespace

StepEvaluator::StepEvaluator(const PlannedSpace& space, StepModel& model)
    : space_(space),
      model_(model),
      balance_by_pipeline_(
          static_cast<size_t>(space.space().model.num_layers) + 1, 0) {
  const std::string& pinned = space.space().constraints.recompute;
  fits_stages_ = pinned == "auto";
  Layout layout;
  if (!fits_stages_) SetRecompute(pinned, &layout);
  const std::vector<Recompute>& stages = layout.recompute_by_stage;
  for (int r = 0; r < kNumRecomputes; ++r) {
    const auto recompute = static_cast<Recompute>(r);
    if (fits_stages_ || (stages.empty() && recompute == layout.recompute) ||
        std::find(stages.begin(), stages.end(), recompute) != stages.end()) {
      recomputes_.push_back(recompute);
    }
  }
}

std::optional<Layout> StepEvaluator::FitRecompute(const Layout& variant,
                                                  int64_t memory_limit) {
  if (!fits_stages_ || variant.pipeline == 1) return std::nullopt;
  std::optional<std::vector<Recompute>> fitted =
      model_.FitRecompute(variant, memory_limit, recomputes_);
  if (!fitted.has_value()) return std::nullopt;
  const auto [least, most] =
      std::minmax_element(fitted->begin(), fitted->end());
  if (*least == *most) return std::nullopt;
  Layout layout = variant;
  layout.recompute = *most;
  layout.recompute_by_stage = *std::move(fitted);
  return layout;
}

double StepEvaluator::PassFloor(const Layout& sharding) {
  Layout whole = sharding;
  // One stage, so that experts are as near as they can be.
  whole.pipeline = 1;
  whole.num_microbatches = 1;
  whole.recompute = recomputes_.front();
  return model_.PredictPasses(whole).step_time_s();
}

double StepEvaluator::MeshFloor(const Layout& mesh) {
  Layout plain = mesh;
  plain.recompute = recomputes_.front();
  const StepTime time = model_.PredictPasses(plain);
  const double busy_s = BusySeconds(time);
  if (mesh.pipeline == 1) return busy_s;
  const LayoutConstraints& pinned = space_.space().constraints;
  const int64_t chunks = space_.space().model.num_layers / mesh.pipeline;
  if (chunks < 2 || pinned.interleave.value_or(2) == 1 ||
      (pinned.schedule != "auto" &&
       pinned.schedule != ScheduleName(Schedule::kInterleaved))) {
    return busy_s;
  }
  // Chunks may balance the stages better, at best evenly.
  const double microbatches = mesh.num_microbatches;
  const double all_stages_s = busy_s / microbatches + time.bubble_s;
  return std::min(busy_s, microbatches * all_stages_s / mesh.pipeline);
}

double StepEvaluator::OrderFloor(const Layout& order) {
  Layout least = order;
  least.recompute = recomputes_.front();
  return model_.PassesFloor(least);
}

int64_t StepEvaluator::LeastMemory(Layout layout) {
  const LayoutConstraints& pinned = space_.space().constraints;
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int32_t zero = 0; zero <= 3; ++zero) {
    if (pinned.zero.value_or(zero) != zero) continue;
    layout.zero = zero;
    const StepMemory memory = model_.LeastMemory(layout, recomputes_);
    // Communicators are fewer where an axis is one.
    least = std::min(least, memory.total() - memory.overhead);
  }
  return least;
}

int64_t StepEvaluator::ShardingMemoryFloor(const Layout& sharding) {
  // As if stages and replicas could both have all devices.
  const int64_t groups = space_.UsableDevices(sharding.tensor) /
                         (int64_t{sharding.tensor} * sharding.context);
  Layout smallest = sharding;
  smallest.pipeline =
      static_cast<int32_t>(std::min(groups, space_.space().model.num_layers));
  smallest.data = static_cast<int32_t>(groups);
  smallest.num_microbatches = 1;
  return LeastMemory(smallest);
}

double StepEvaluator::BestBalance(int32_t pipeline) {
  double& balance = balance_by_pipeline_[static_cast<size_t>(pipeline)];
  if (balance > 0) return balance;
  const ModelSpec& model = space_.space().model;
  const Layout layout{.pipeline = pipeline};
  int64_t most = 0;
  for (int32_t stage = 0; stage < pipeline; ++stage) {
    const LayerRange layers = StageLayers(model, layout, stage);
    most = std::max(most, layers.end - layers.begin);
  }
  balance = static_cast<double>(model.num_layers) / pipeline /
            static_cast<double>(most);
  return balance;
}

int64_t StepEvaluator::MeshMemoryFloor(const Layout& mesh) {
  return static_cast<int64_t>(BestBalance(mesh.pipeline) *
                              static_cast<double>(LeastMemory(mesh)));
}

}  // namespace millrace
