// Computes the time of one layer from its ops (planner/graph/layer_graph.h):
// compute by phase, and the communication that compute does not hide.

#ifndef MILLRACE_PLANNER_COST_LAYER_TIME_H_
#define MILLRACE_PLANNER_COST_LAYER_TIME_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "planner/cost/op_cost.h"
#include "planner/graph/layer_graph.h"
#include "planner/graph/style.h"
#include "planner/layout/layout.h"

namespace millrace {

// The groups of a rank in the mesh (planner/layout/mesh.h), whose order is
// AxisOrder::kPipelineOutermost with Implementation::pipeline_outermost.
GroupPlacement TensorGroup(const Layout& layout);
GroupPlacement ContextGroup(const Layout& layout);
// The `expert` ranks that share the experts of a layer. They lie over the
// tensor axis first (if experts are whole), then context, then data. Where
// `expert` and the near axes do not divide one another, they lie over as many
// of these as divide it, and the rest over data.
GroupPlacement ExpertGroup(const Layout& layout,
                           const Implementation& implementation);
// Ranks that hold the same parameters: over context and data. For experts, the
// ranks that `expert` leaves of both axes that ExpertGroup lies over.
GroupPlacement ReplicaGroup(const Layout& layout,
                            const Implementation& implementation);
// Where Layout::data_groups cuts the data axis: the ranks of one group, and
// those with the same slice in each group.
GroupPlacement ShardPlacement(const Layout& layout,
                              const Implementation& implementation);
GroupPlacement AcrossPlacement(const Layout& layout,
                               const Implementation& implementation);
GroupPlacement ExpertReplicaGroup(const Layout& layout,
                                  const Implementation& implementation);
int64_t PipelineStride(const Layout& layout,
                       const Implementation& implementation);

// Seconds of one micro-batch.
struct PassTime {
  double compute = 0;
  double tensor = 0;  // Exposed communication, as are the next two.
  double context = 0;
  double expert = 0;
  double total() const { return compute + tensor + context + expert; }
  PassTime& operator+=(const PassTime& other) {
    compute += other.compute;
    tensor += other.tensor;
    context += other.context;
    expert += other.expert;
    return *this;
  }
  friend PassTime operator*(double count, const PassTime& time) {
    return {.compute = count * time.compute,
            .tensor = count * time.tensor,
            .context = count * time.context,
            .expert = count * time.expert};
  }
};

struct LayerTime {
  PassTime forward;
  PassTime recompute;
  PassTime input_gradient;
  double weight_gradient = 0;  // Nothing waits inside it.
  double backward() const {
    return recompute.total() + input_gradient.total() + weight_gradient;
  }
  double total() const { return forward.total() + backward(); }
  LayerTime& operator+=(const LayerTime& other) {
    forward += other.forward;
    recompute += other.recompute;
    input_gradient += other.input_gradient;
    weight_gradient += other.weight_gradient;
    return *this;
  }
  friend LayerTime operator*(double count, const LayerTime& time) {
    return {.forward = count * time.forward,
            .recompute = count * time.recompute,
            .input_gradient = count * time.input_gradient,
            .weight_gradient = count * time.weight_gradient};
  }
};

// Seconds of one phase before anything is hidden.
struct PhaseTime {
  double gemms = 0;
  double attention = 0;
  double bandwidth = 0;
  int64_t launches = 0;
  double tensor = 0;  // Communication, as are the next two.
  double context = 0;
  double expert = 0;
  double compute() const { return gemms + attention + bandwidth; }
};

// The ops of a layer priced by phase, but for exchanges between experts: these
// alone depend on where the other axes put the ranks.
struct PricedLayer {
  static constexpr size_t kNumPhases = 4;
  std::array<PhaseTime, kNumPhases> phases;  // By Phase; layers have the first.
  const PhaseTime& of(Phase phase) const {
    return phases[static_cast<size_t>(phase)];
  }
  struct Exchange {
    Phase phase;
    ExchangeAttributes attributes;
  };
  std::vector<Exchange> exchanges;
};
PricedLayer PriceLayer(const LayerGraph& graph, const Layout& layout,
                       const Implementation& implementation,
                       const CostModel& cost);

// Tensor communication hides under products of its pass as far as the
// implementation overlaps it; gathers for weight gradients always do.
// Communication of the context ring hides under attention. Exchanges between
// experts hide under the compute of the pass. Work that hides something takes
// profile.overlap.compute longer meanwhile.
LayerTime TimeOfLayer(const PricedLayer& layer, const Layout& layout,
                      const Implementation& implementation,
                      const CostModel& cost);

// The same for the ops that workers run, where a profile has measured tables
// and no data sheet: each op takes its measured time. All computing is in
// PhaseTime::bandwidth.
PricedLayer PriceMeasuredLayer(const LayerGraph& graph, const Layout& layout,
                               const CostModel& cost);

// The passes when other ranks of the host make computing take `contention`
// times as long. Communication of the backward pass hides under weight
// gradients and recompute, that of the forward pass under nothing.
LayerTime TimeOfMeasuredLayer(const PricedLayer& layer, double contention,
                              const OverlapFactors& overlap);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_COST_LAYER_TIME_H_
