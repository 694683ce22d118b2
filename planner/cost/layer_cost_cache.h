// Caches the time and memory of a layer for each way of sharding it, since a
// search asks for the same ones millions of times. StepModel
// (planner/cost/closed_form.h) owns the cache.

#ifndef MILLRACE_PLANNER_COST_LAYER_COST_CACHE_H_
#define MILLRACE_PLANNER_COST_LAYER_COST_CACHE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "planner/cost/host_sharing.h"
#include "planner/cost/layer_time.h"
#include "planner/cost/op_cost.h"
#include "planner/cost/stage_time.h"
#include "planner/graph/style.h"
#include "planner/layout/layout.h"
#include "planner/layout/model.h"

namespace millrace {

// For one thread. Borrows what it is made of; what it returns stays where it
// is.
class CutCosts {
 public:
  // Shares the caches of `other` unless it is null. The two may differ in
  // Implementation::pipeline_outermost alone.
  CutCosts(const ModelSpec& model, const Implementation& implementation,
           const CostModel& cost, const CutCosts* other)
      : model_(model),
        implementation_(implementation),
        cost_(cost),
        shares_cores_(SharesCores(cost.profile().compute_contention)),
        kinds_(KindsOfLayers(model)),
        caches_(other == nullptr ? std::make_shared<Caches>()
                                 : other->caches_) {}

  // The costs of a stage of the layout that recomputes so much, whatever the
  // layout says of that. Loads are had without prices, in a fraction of the
  // time.
  const CutTimes& Times(const Layout& layout, Recompute recompute);
  const CutLoads& Loads(const Layout& layout, Recompute recompute);

  // See StepModel.
  std::vector<RecomputeCandidate> PriceRecompute(const Layout& layout) const;
  const std::vector<Recompute>& Recomputes(const Layout& layout);

 private:
  // Equal keys, equal values.
  struct Key {
    int32_t tensor, context, expert, expert_tensor, micro_batch;
    int32_t replica_stride;  // For times alone.
    int32_t kinds;  // Precision, format, recompute, and of some values more.
    double num_computing = 0;  // For times alone.
    friend bool operator==(const Key&, const Key&) = default;
    template <typename H>
    friend H AbslHashValue(H state, const Key& key) {
      return H::combine(std::move(state), key.tensor, key.context, key.expert,
                        key.expert_tensor, key.micro_batch, key.replica_stride,
                        key.kinds, key.num_computing);
    }
  };
  template <typename Value>
  struct Cache {
    absl::flat_hash_map<Key, std::unique_ptr<const Value>> values;
    // The last one asked for, by recompute: searches ask for what differs in
    // recompute alone in turn.
    struct Recent {
      Key key;
      const Value* value = nullptr;
    };
    std::array<Recent, kNumRecomputes> recent;
  };

  struct Caches {
    Cache<CutTimes> times;
    Cache<CutLoads> loads;
    // For ranks that compute alone, wherever other axes put the experts.
    Cache<PricedLayer> layers;
    Cache<std::vector<Recompute>> recomputes;
  };

  // Without what only times or only loads depend on.
  static Key KeyOf(const Layout& layout, Recompute recompute);
  // From the cache, or else what `make()` returns.
  template <typename Value, typename Make>
  static const Value& Find(const Key& key, Recompute recompute,
                           const Make& make, Cache<Value>* cache);
  // Whether workers run what is priced.
  bool WorkersRun(const Layout& layout) const;
  // A kind of layer, or an end of the model.
  enum class Part : uint8_t { kEmbedding = kNumLayerKinds, kHead };
  static Part PartOf(LayerKind kind) { return static_cast<Part>(kind); }
  LayerGraph GraphOf(Part part, const Layout& layout) const;
  CutTimes MakeTimes(const Layout& layout, Recompute recompute,
                     double num_computing);
  CutLoads MakeLoads(const Layout& layout, Recompute recompute);

  const ModelSpec& model_;
  const Implementation& implementation_;
  const CostModel& cost_;
  const bool shares_cores_;
  const std::vector<LayerKind> kinds_;  // Those that the model has.
  const std::shared_ptr<Caches> caches_;
};

}  // namespace millrace

#endif  // MILLRACE_PLANNER_COST_LAYER_COST_CACHE_H_
