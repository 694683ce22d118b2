// Computes the time and memory of one pipeline stage: the sum of its layers,
// and once a step the data axis's communication and the optimizer.

#ifndef MILLRACE_PLANNER_COST_STAGE_TIME_H_
#define MILLRACE_PLANNER_COST_STAGE_TIME_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

#include "planner/cost/layer_time.h"
#include "planner/cost/layer_work.h"
#include "planner/cost/op_cost.h"
#include "planner/cost/step_memory.h"
#include "planner/graph/style.h"
#include "planner/layout/layout.h"

namespace millrace {

LayerLoad LoadOf(const LayerGraph& graph, const RankParameters& parameters,
                 Precision precision);

// Values by LayerKind.
template <typename T>
class ByLayerKind {
 public:
  T& of(LayerKind kind) { return values_[static_cast<size_t>(kind)]; }
  const T& of(LayerKind kind) const {
    return values_[static_cast<size_t>(kind)];
  }
  friend bool operator==(const ByLayerKind&, const ByLayerKind&) = default;

 private:
  std::array<T, kNumLayerKinds> values_{};
};
inline constexpr LayerKind kLayerKinds[] = {
    LayerKind::kDense, LayerKind::kExperts, LayerKind::kGlobal,
    LayerKind::kStoredDense, LayerKind::kStoredGlobal};
static_assert(std::size(kLayerKinds) == kNumLayerKinds);

// The times of one layer, of the kinds that the model has, and of the ends of
// the model, under one way of sharding them.
struct CutTimes {
  ByLayerKind<LayerTime> layers;
  LayerTime embedding;
  LayerTime head;
};
// The memory of the same.
struct CutLoads {
  ByLayerKind<LayerLoad> layers;
  LayerLoad embedding;
  LayerLoad head;
};

// Layers of a stage, or of one of its chunks.
class LayerCounts {
 public:
  void Count(LayerKind kind) { ++counts_.of(kind); }
  int64_t of(LayerKind kind) const { return counts_.of(kind); }
  int64_t total() const {
    int64_t sum = 0;
    for (const LayerKind kind : kLayerKinds) sum += of(kind);
    return sum;
  }
  friend bool operator==(const LayerCounts&, const LayerCounts&) = default;

 private:
  ByLayerKind<int64_t> counts_;
};

// The memory that a stage of a pipeline holds.
struct StageKind {
  LayerCounts layers;
  bool has_embedding = false;
  bool has_head = false;
  int32_t first = 0;  // The first stage of this kind.
  // Where it has several chunks; with one chunk a stage they do not matter.
  LayerCounts first_chunk, last_chunk;
  bool is_like(const StageKind& other) const {
    return layers == other.layers && has_embedding == other.has_embedding &&
           has_head == other.has_head && first_chunk == other.first_chunk &&
           last_chunk == other.last_chunk;
  }
};

// The stages of a pipeline, by kind.
struct StageList {
  std::vector<StageKind> kinds;
  std::vector<std::vector<int32_t>> stages_of_kind;  // Ascending.
  std::vector<int32_t> kind_of_stage;
};
StageList StagesOf(const ModelSpec& model, const Layout& layout,
                   const Implementation& implementation);

// All layers and both ends of the model.
StageKind WholeModel(const ModelSpec& model);

inline LayerTime TimeOfStage(const CutTimes& cut, const StageKind& stage) {
  LayerTime time;
  for (const LayerKind kind : kLayerKinds) {
    const int64_t count = stage.layers.of(kind);
    if (count > 0) time += static_cast<double>(count) * cut.layers.of(kind);
  }
  if (stage.has_embedding) time += cut.embedding;
  if (stage.has_head) time += cut.head;
  return time;
}
// `kinds` has at least one.
const StageKind& SlowestStage(const CutTimes& cut,
                              const std::vector<StageKind>& kinds);
// `stream_bytes` as StreamBytes() says.
StageLoad LoadOfStage(const CutLoads& cut, const StageKind& stage,
                      double stream_bytes);

// The mean of what the stages of a pipeline hold. For what only one layer needs
// at a time it is the least of any kind.
StageLoad MeanLoad(const CutLoads& cut, const StageKind& whole,
                   int32_t num_stages);

// The data axis's traffic of a rank: whole reductions and gathers, alone.
struct ReplicaTraffic {
  double reduce = 0;
  double gather = 0;
  // The sums between groups of the data axis, once a step.
  double across = 0;
  // The number of equal buckets that would hide as much. With tables alone, the
  // buckets are those of workers, and the largest one sticks out.
  double buckets = 1;
};
ReplicaTraffic TrafficOf(const ModelSpec& model, const Layout& layout,
                         const Implementation& implementation,
                         const CostModel& cost, const CutLoads& cut,
                         const StageKind& stage);

// Seconds of a rank's AdamW, gradient norm and zeroing of gradients, and of
// rounding them where they are reduced in bf16. Where tables price everything,
// of the workers' ops, with the sum of the step's scalars over all ranks.
double OptimizerSeconds(const Layout& layout,
                        const Implementation& implementation,
                        const CostModel& cost,
                        const RankParameters& parameters);

// Seconds that `comm`, in so many buckets, sticks out of `window` seconds of
// computing, of which `hidden_share` hides at most; `slowdown` grows by what it
// costs the computing it hides under.
double ExposedSeconds(double comm, double buckets, double window,
                      double hidden_share, const OverlapFactors& overlap,
                      double* slowdown);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_COST_STAGE_TIME_H_
