#include "planner/search/closed_form_evaluator.h"

#include <algorithm>
#include <utility>

namespace millrace {
namespace {

// Seconds in which the slowest stage is not waiting.
double BusySeconds(const StepTime& time) {
  return time.step_time_s() - time.bubble_s - time.transfer_s;
}

}  // namespace

StepEvaluator::StepEvaluator(const LayoutTree& tree, StepModel& model)
    : tree_(tree), model_(model) {
  const std::optional<int32_t>& zero = tree.space().constraints.zero;
  // List scheduling is of passes that reduce no gradients.
  const int32_t most = tree.ListsPasses() && !zero.has_value() ? 1 : 3;
  for (int32_t z = 0; z <= most; ++z) {
    if (zero.value_or(z) == z) zeros_.push_back(z);
  }
  fits_stages_ = LeavesStagesOpen(tree.space().constraints.recompute);
}

const StepEvaluator::RecomputeSets& StepEvaluator::Sets(const Layout& layout) {
  const auto [found, is_new] = sets_.try_emplace(
      {layout.tensor, layout.context, layout.expert, layout.expert_tensor});
  RecomputeSets& known = found->second;
  if (!is_new) return known;
  for (const StageRecomputes& again :
       AllowedRecomputes(tree_.space(), layout)) {
    std::vector<Recompute> sets = again.by_stage;
    if (sets.empty()) sets.push_back(again.recompute);
    for (const Recompute set : sets) {
      known.least = known.least & set;
      if (std::find(known.allowed.begin(), known.allowed.end(), set) ==
          known.allowed.end()) {
        known.allowed.push_back(set);
      }
    }
  }
  return known;
}

std::optional<Layout> StepEvaluator::FitRecompute(const Layout& variant,
                                                  int64_t memory_limit) {
  if (!fits_stages_ || variant.pipeline == 1) return std::nullopt;
  std::optional<std::vector<Recompute>> fitted =
      model_.FitRecompute(variant, memory_limit, Sets(variant).allowed);
  if (!fitted.has_value()) return std::nullopt;
  Layout layout = variant;
  layout.recompute = Recompute::kNone;
  bool are_alike = true;
  for (const Recompute stage : *fitted) {
    layout.recompute = layout.recompute | stage;
    are_alike &= stage == fitted->front();
  }
  if (are_alike) return std::nullopt;
  layout.recompute_by_stage = *std::move(fitted);
  return layout;
}

double StepEvaluator::PassFloor(const Layout& sharding) {
  Layout whole = sharding;
  // One stage, so that experts are as near as they can be.
  whole.pipeline = 1;
  whole.SetMicrobatches(1);
  whole.recompute = Sets(sharding).least;
  return model_.PredictPasses(whole).step_time_s();
}

bool StepEvaluator::MayInterleave(int32_t pipeline) const {
  const LayoutConstraints& pinned = tree_.space().constraints;
  return pipeline > 1 && tree_.space().model.num_layers / pipeline >= 2 &&
         pinned.interleave.value_or(2) > 1 &&
         (pinned.schedule == "auto" || tree_.ListsPasses() ||
          pinned.schedule == ScheduleName(Schedule::kInterleaved));
}

double StepEvaluator::MeshFloor(const Layout& mesh) {
  Layout plain = mesh;
  plain.recompute = Sets(mesh).least;
  const StepTime time = model_.PredictPasses(plain);
  const double busy_s = BusySeconds(time);
  if (mesh.pipeline == 1) return busy_s;
  if (!MayInterleave(mesh.pipeline)) return busy_s;
  // Chunks may balance the stages better, at best evenly.
  const double microbatches = mesh.most_microbatches();
  const double all_stages_s = busy_s / microbatches + time.bubble_s;
  return std::min(busy_s, microbatches * all_stages_s / mesh.pipeline);
}

double StepEvaluator::OrderFloor(const Layout& order) {
  Layout least = order;
  least.recompute = Sets(order).least;
  return model_.PassesFloor(least);
}

int64_t StepEvaluator::LeastMemory(const Layout& layout) {
  const std::vector<Recompute>& recomputes = Sets(layout).allowed;
  const StepMemory memory = LeastOfReductions(layout, [&](const Layout& one) {
    return model_.LeastMemory(one, zeros_, recomputes);
  });
  const int64_t bytes = memory.total() - memory.overhead;
  if (!MayInterleave(layout.pipeline)) return bytes;
  const StepMemory chunks = LeastOfReductions(layout, [&](const Layout& one) {
    return model_.LeastInterleavedMemory(one, zeros_, recomputes);
  });
  return std::min(bytes, chunks.total() - chunks.overhead);
}

int64_t StepEvaluator::OrderMemoryFloor(const Layout& order) {
  return LeastOfReductions(order,
                           [&](const Layout& one) {
                             return model_.LeastMemory(one, zeros_,
                                                       Sets(order).allowed);
                           })
      .total();
}

StepMemory StepEvaluator::LeastOfReductions(
    const Layout& layout,
    absl::FunctionRef<StepMemory(const Layout& layout)> memory_of) {
  StepMemory least = memory_of(layout);
  if (tree_.space().gradient_reduction.has_value()) return least;
  Layout rounded = layout;
  rounded.gradient_reduction = GradientReduction::kBfloat16;
  const StepMemory of_rounded = memory_of(rounded);
  return of_rounded.total() < least.total() ? of_rounded : least;
}

int64_t StepEvaluator::ShardingMemoryFloor(const Layout& sharding) {
  // As if stages and replicas could both have all devices.
  const int64_t groups =
      tree_.space().num_devices / (int64_t{sharding.tensor} * sharding.context);
  Layout smallest = sharding;
  smallest.pipeline =
      static_cast<int32_t>(std::min(groups, tree_.space().model.num_layers));
  smallest.data = static_cast<int32_t>(groups);
  smallest.SetMicrobatches(1);
  // Communicators are fewer where an axis is one.
  return LeastMemory(smallest) + model_.OverheadOf(sharding);
}

int64_t StepEvaluator::MeshMemoryFloor(const Layout& mesh) {
  Layout one_replica = mesh;
  one_replica.data = 1;
  return LeastMemory(mesh) + model_.OverheadOf(one_replica);
}

}  // namespace millrace
