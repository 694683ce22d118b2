#include "planner/search/listed_floor.h"

#include <algorithm>
#include <limits>

#include "planner/pipeline/list_schedule.h"

namespace millrace {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Of what is gathered or reduced once a step, the share that no pass hides:
// what is exposed anyway, and the first or last bucket of the rest.
double ExposedShare(double hidden_share, int32_t chunks_of_stage,
                    int32_t num_buckets) {
  return 1 - hidden_share +
         hidden_share / (static_cast<double>(chunks_of_stage) * num_buckets);
}

int32_t MostChunksOfStage(const PipelineCosts& costs) {
  std::vector<int32_t> chunks(static_cast<size_t>(costs.num_stages), 0);
  for (const int32_t stage : costs.stage_of_chunk) ++chunks[stage];
  return *std::max_element(chunks.begin(), chunks.end());
}

}  // namespace

TransferTraffic TrafficOf(const ClusterStep& step,
                          const OverlapFactors& overlap) {
  return {.compute_slowdown = overlap.compute,
          .communication_slowdown = overlap.communication,
          .blocks = !step.overlaps_transfers};
}

double LeastStepSeconds(const ClusterStep& step,
                        const std::vector<int64_t>& memory_bytes,
                        const OverlapFactors& overlap) {
  StepModel::StepEnds least = step.ends.front();
  for (const StepModel::StepEnds& ends : step.ends)
    least = LeastOf(least, ends);
  return LowerBoundOfMakespan(step.costs, memory_bytes,
                              TrafficOf(step, overlap)) +
         ExposedShare(step.data_hidden_share, MostChunksOfStage(step.costs),
                      step.num_buckets) *
             (least.parameter_gather_s + least.gradient_reduction_s) +
         least.optimizer_s;
}

ListFloorEvaluator::ListFloorEvaluator(const PlannedSpace& space,
                                       StepModel& model, int64_t memory_limit,
                                       double data_hidden_share,
                                       const TransferTraffic& traffic)
    : StepEvaluator(space, model),
      memory_limit_(memory_limit),
      data_hidden_share_(data_hidden_share),
      traffic_(traffic) {}

double ListFloorEvaluator::OrderFloor(const Layout& order) {
  Layout least = order;
  least.recompute = Sets(order).least;
  const StepTime time = model_.PredictPasses(least);
  return time.step_time_s() - time.bubble_s - time.transfer_s;
}

double ListFloorEvaluator::VariantFloor(const Layout& variant) {
  const bool is_first = !variant.recompute_by_stage.empty() ||
                        variant.recompute == Sets(variant).allowed.front();
  if (!is_first) return kInfinity;
  const int32_t zeros[] = {variant.zero};
  const StepMemory memory =
      model_.LeastInterleavedMemory(variant, zeros, Sets(variant).allowed);
  if (memory.total() - memory.overhead > memory_limit_) return kInfinity;
  Layout least = variant;
  least.recompute = Sets(variant).least;
  least.recompute_by_stage.clear();
  return LowerBoundOfMakespan(model_.PassCosts(least), {}, traffic_);
}

int64_t ListFloorEvaluator::LeastMemory(const Layout& layout) {
  const StepMemory memory =
      model_.LeastInterleavedMemory(layout, zeros_, Sets(layout).allowed);
  return memory.total() - memory.overhead;
}

StepPrediction ListFloorEvaluator::Predict(const Layout& layout) {
  Layout plain = layout;
  plain.recompute = Recompute::kNone;
  plain.recompute_by_stage.clear();
  if (!known_floor_.has_value() || !(plain == known_)) {
    known_ = plain;
    known_floor_ = FloorOf(plain);
  }
  return *known_floor_;
}

std::optional<Layout> ListFloorEvaluator::QuickestByStage(
    const Layout& layout) {
  Predict(layout);
  if (!fits_stages_ || known_stages_.empty() ||
      std::all_of(known_stages_.begin(), known_stages_.end(),
                  [&](Recompute r) { return r == known_stages_.front(); })) {
    return std::nullopt;
  }
  Layout mixed = known_;
  for (const Recompute stage : known_stages_) {
    mixed.recompute = mixed.recompute | stage;
  }
  mixed.recompute_by_stage = known_stages_;
  return mixed;
}

StepPrediction ListFloorEvaluator::FloorOf(Layout layout) {
  std::vector<double> stage_s(static_cast<size_t>(layout.pipeline), kInfinity);
  std::vector<int64_t> stage_bytes(static_cast<size_t>(layout.pipeline),
                                   std::numeric_limits<int64_t>::max());
  const RecomputeSets& sets = Sets(layout);
  known_stages_.assign(static_cast<size_t>(layout.pipeline), Recompute::kNone);
  // What stages wait for of others.
  layout.recompute = sets.least;
  const MakespanBound bound(model_.PassCosts(layout));
  for (const Recompute recompute : sets.allowed) {
    layout.recompute = recompute;
    const PipelineCosts costs = model_.PassCosts(layout);
    const std::vector<StepMemory> memory = model_.MemoryByStage(layout);
    for (int32_t s = 0; s < layout.pipeline; ++s) {
      const int64_t beside = memory[s].total() - memory[s].activations;
      const int64_t need = beside + LeastBytes(costs, s);
      stage_bytes[s] = std::min(stage_bytes[s], need);
      if (need > memory_limit_) continue;
      const double bound_s =
          bound.OfStage(costs, s, memory_limit_ - beside, traffic_);
      if (bound_s >= stage_s[s]) continue;
      stage_s[s] = bound_s;
      known_stages_[s] = recompute;
    }
  }
  if (std::count(stage_s.begin(), stage_s.end(), kInfinity) > 0) {
    known_stages_.clear();
  }
  layout.recompute = sets.least;
  const StepModel::StepEnds ends = model_.LeastEnds(layout);
  StepPrediction floor;
  floor.memory.activations =
      *std::max_element(stage_bytes.begin(), stage_bytes.end());
  const double exposed_share = ExposedShare(
      data_hidden_share_, layout.interleave, BucketsOfChunk(layout.interleave));
  floor.time.compute_s =
      *std::max_element(stage_s.begin(), stage_s.end()) +
      exposed_share * (ends.parameter_gather_s + ends.gradient_reduction_s) +
      ends.optimizer_s;
  return floor;
}

}  // namespace millrace
