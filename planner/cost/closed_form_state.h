// The private state of StepModel, shared by closed_form.cc and
// closed_form_memory.cc only.

#ifndef MILLRACE_PLANNER_COST_CLOSED_FORM_STATE_H_
#define MILLRACE_PLANNER_COST_CLOSED_FORM_STATE_H_

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "planner/cost/closed_form.h"
#include "planner/cost/layer_cost_cache.h"
#include "planner/cost/layer_time.h"
#include "planner/cost/op_cost.h"
#include "planner/cost/stage_time.h"
#include "planner/graph/style.h"

namespace millrace {

// One micro-batch's passes.
struct PipelinePasses {
  LayerTime slowest;
  const StageKind* slowest_stage = nullptr;
  double all_stages_s = 0;
};

// A step's passes, without the data axis and the optimizer.
struct StepPasses {
  Layout layout;  // With ZeRO 0: all ZeRO stages have the same passes.
  PipelinePasses pipeline;
  StepTime time;
};

struct StepModel::State {
  State(const ModelSpec& model_spec, const Implementation& how,
        CostModel prices, const CutCosts* shared_cuts)
      : model(model_spec),
        implementation(how),
        cost(std::move(prices)),
        whole(WholeModel(model)),
        cuts(model, implementation, cost, shared_cuts) {}

  const CutTimes& Times(const Layout& layout) {
    return cuts.Times(layout, layout.recompute);
  }
  const CutLoads& Loads(const Layout& layout) {
    return cuts.Loads(layout, layout.recompute);
  }
  const StageList& Stages(const Layout& layout);
  const StepPasses& PassesOf(const Layout& layout);
  PipelinePasses MakePasses(const Layout& layout);
  StepTime TimeOf(const Layout& layout, const PipelinePasses& passes) const;
  StepMemory MemoryOf(const Layout& layout, const StageKind& kind,
                      int32_t stage, Recompute recompute, double stream_bytes);
  // The load of a stage with which it holds the fewest bytes of activations and
  // of what only lives while a layer is computed.
  StageLoad LeastLoad(const Layout& layout, const StageKind& kind,
                      std::span<const CutLoads* const> loads,
                      double stream_bytes) const;
  // A micro-batch's activations from one stage to the next, and where norms do
  // not share the tokens of the tensor axis, gathered there.
  double HopSeconds(const Layout& layout) const;

  const ModelSpec model;
  const Implementation implementation;
  const CostModel cost;
  const StageKind whole;  // All of the model.
  CutCosts cuts;
  // By pipeline << 32 | interleave.
  std::unordered_map<uint64_t, StageList> stages;
  // The stages asked for last: searches ask for them again.
  uint64_t last_key = 0;
  const StageList* last_stages = nullptr;
  // The passes asked for last, by recompute: searches ask for the variants of
  // one order in turn, of each for a bound and then for its price.
  std::array<std::optional<StepPasses>, kNumRecomputes> last_passes;
  // Kept between calls of LeastMemory() for their storage.
  std::vector<const CutLoads*> loads_of_recompute;
  std::vector<StageLoad> least_loads;
};

}  // namespace millrace

#endif  // MILLRACE_PLANNER_COST_CLOSED_FORM_STATE_H_
