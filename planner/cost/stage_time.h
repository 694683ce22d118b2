// Computes the time and memory of one pipeline stage: the sum of its layers,
// and once a step the data axis's communication and the optimizer.

#ifndef MILLRACE_PLANNER_COST_STAGE_TIME_H_
#define MILLRACE_PLANNER_COST_STAGE_TIME_H_

#include <cstdint>
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

// The times of one layer, and of the ends of the model, under one way of
// sharding them.
struct CutTimes {
  LayerTime dense;
  LayerTime global;
  LayerTime experts;
  LayerTime embedding;
  LayerTime head;
};
// The memory of one layer, and of the ends of the model, under one way of
// sharding them.
struct CutLoads {
  LayerLoad dense;
  LayerLoad global;
  LayerLoad experts;
  LayerLoad embedding;
  LayerLoad head;
};

// Layers of a stage, or of one of its chunks.
struct LayerCounts {
  int64_t dense = 0;  // Without the global ones, as in StageKind.
  int64_t global = 0;
  int64_t experts = 0;
  void Count(LayerKind kind) {
    ++(kind == LayerKind::kDense    ? dense
       : kind == LayerKind::kGlobal ? global
                                    : experts);
  }
  friend bool operator==(const LayerCounts&, const LayerCounts&) = default;
};

// The memory that a stage of a pipeline holds.
struct StageKind {
  int64_t num_dense = 0;
  int64_t num_global = 0;
  int64_t num_experts = 0;
  bool has_embedding = false;
  bool has_head = false;
  int32_t first = 0;  // The first stage of this kind.
  // Where it has several chunks; with one chunk a stage they do not matter.
  LayerCounts first_chunk, last_chunk;
  bool is_like(const StageKind& other) const {
    return num_dense == other.num_dense && num_global == other.num_global &&
           num_experts == other.num_experts &&
           has_embedding == other.has_embedding && has_head == other.has_head &&
           first_chunk == other.first_chunk && last_chunk == other.last_chunk;
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
  LayerTime time = static_cast<double>(stage.num_dense) * cut.dense;
  if (stage.num_global > 0) {
    time += static_cast<double>(stage.num_global) * cut.global;
  }
  if (stage.num_experts > 0) {
    time += static_cast<double>(stage.num_experts) * cut.experts;
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
StageLoad MeanLoad(const CutLoads& cut, const ModelSpec& model,
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
