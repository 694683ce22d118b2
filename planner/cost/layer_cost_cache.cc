#include "planner/cost/layer_cost_cache.h"

#include "planner/cost/host_sharing.h"
#include "planner/cost/layer_work.h"
#include "planner/cost/recompute_ladder.h"

namespace millrace {
namespace {

// The layout with this recompute in all stages. All ZeRO stages share the costs
// of layers.
Layout WithRecompute(const Layout& layout, Recompute recompute) {
  Layout uniform = layout;
  uniform.zero = 0;
  uniform.data_groups = 1;
  uniform.gradient_reduction = GradientReduction::kFloat32;
  uniform.recompute = recompute;
  uniform.recompute_by_stage.clear();
  return uniform;
}

// Layers of experts alone know how experts are spread.
bool SpreadsExperts(const Layout& layout) {
  return layout.expert > 1 || layout.expert_tensor > 1;
}
Layout WithWholeExperts(Layout layout) {
  layout.expert = layout.expert_tensor = 1;
  return layout;
}

// Computing when other ranks of the host slow it down.
LayerTime Contended(LayerTime time, double contention) {
  for (PassTime* pass :
       {&time.forward, &time.recompute, &time.input_gradient}) {
    pass->compute *= contention;
  }
  time.weight_gradient *= contention;
  return time;
}

int32_t CopyEngineBits(const CopyEngineUse& use) {
  return (use.tensor_gathers ? 1 << 25 : 0) |
         (use.tensor_reductions ? 1 << 26 : 0);
}

}  // namespace

CutCosts::Key CutCosts::KeyOf(const Layout& layout, Recompute recompute) {
  return {.tensor = layout.tensor,
          .context = layout.context,
          .expert = layout.expert,
          .expert_tensor = layout.expert_tensor,
          .micro_batch = layout.micro_batch,
          .replica_stride = 0,
          .kinds = static_cast<int32_t>(layout.precision) |
                   static_cast<int32_t>(layout.gemm_format) << 8 |
                   static_cast<int32_t>(recompute) << 16};
}

template <typename Value, typename Make>
const Value& CutCosts::Find(const Key& key, Recompute recompute,
                            const Make& make, Cache<Value>* cache) {
  auto& recent = cache->recent[static_cast<size_t>(recompute)];
  if (recent.value != nullptr && recent.key == key) return *recent.value;
  const auto found = cache->values.find(key);
  const Value* value = nullptr;
  if (found != cache->values.end()) {
    value = found->second.get();
  } else {
    auto made = std::make_unique<const Value>(make());
    value = made.get();
    cache->values.emplace(key, std::move(made));
  }
  recent = {.key = key, .value = value};
  return *value;
}

const CutTimes& CutCosts::Times(const Layout& layout, Recompute recompute) {
  Key key = KeyOf(layout, recompute);
  if (layout.expert > 1) {
    // Where experts lie on the tensor and context axes only, replicas do not
    // matter.
    const GroupPlacement experts = ExpertGroup(layout, implementation_);
    if (experts.outer.size > 1) {
      key.replica_stride = static_cast<int32_t>(experts.outer.stride);
    }
  }
  if (shares_cores_) {
    key.num_computing = NumComputing(layout, cost_.profile());
  }
  key.kinds |= CopyEngineBits(layout.copy_engines);
  return Find(
      key, recompute,
      [&] { return MakeTimes(layout, recompute, key.num_computing); },
      &caches_->times);
}

bool CutCosts::WorkersRun(const Layout& layout) const {
  Implementation how = implementation_;
  how.pipeline_outermost = false;
  return how == Implementation{} && !HasPlanOnlyOps(model_) &&
         layout.context == 1 && !SpreadsExperts(layout) &&
         layout.gemm_format == GemmFormat::kAsStored;
}

LayerGraph CutCosts::GraphOf(Part part, const Layout& layout) const {
  if (part == Part::kEmbedding) {
    return GraphOfEmbedding(model_, layout, implementation_);
  }
  if (part == Part::kHead) return GraphOfHead(model_, layout, implementation_);
  return GraphOfLayer(model_, layout, static_cast<LayerKind>(part),
                      implementation_);
}

CutTimes CutCosts::MakeTimes(const Layout& layout, Recompute recompute,
                             double num_computing) {
  const HardwareProfile& profile = cost_.profile();
  const double contention = ContentionOf(num_computing, profile);
  const bool is_measured = !cost_.HasSheet() && WorkersRun(layout);
  const Layout cut = WithRecompute(layout, recompute);
  const auto time_of = [&](Part part) {
    Key key = KeyOf(layout, recompute);
    key.kinds |=
        CopyEngineBits(layout.copy_engines) | static_cast<int32_t>(part) << 27;
    const auto make = [&] {
      const LayerGraph graph = GraphOf(part, cut);
      return is_measured ? PriceMeasuredLayer(graph, cut, cost_)
                         : PriceLayer(graph, cut, implementation_, cost_);
    };
    const PricedLayer& layer = Find(key, recompute, make, &caches_->layers);
    if (is_measured) {
      return TimeOfMeasuredLayer(layer, contention,
                                 OverlapOf(num_computing, profile));
    }
    return Contended(TimeOfLayer(layer, cut, implementation_, cost_),
                     contention);
  };
  CutTimes times;
  if (SpreadsExperts(layout)) {
    times = Times(WithWholeExperts(cut), recompute);
  } else {
    for (const LayerKind kind : kinds_) {
      if (kind == LayerKind::kExperts) continue;
      times.layers.of(kind) = time_of(PartOf(kind));
    }
    times.embedding = time_of(Part::kEmbedding);
    times.head = time_of(Part::kHead);
  }
  if (model_.num_expert_layers() > 0) {
    times.layers.of(LayerKind::kExperts) = time_of(PartOf(LayerKind::kExperts));
  }
  return times;
}

const CutLoads& CutCosts::Loads(const Layout& layout, Recompute recompute) {
  Key key = KeyOf(layout, recompute);
  // A last stage of its own has a copy of a tied embedding.
  if (model_.ties_embedding && layout.pipeline > 1) key.kinds |= 1 << 24;
  return Find(
      key, recompute, [&] { return MakeLoads(layout, recompute); },
      &caches_->loads);
}

CutLoads CutCosts::MakeLoads(const Layout& layout, Recompute recompute) {
  const Layout cut = WithRecompute(layout, recompute);
  const auto load_of = [&](Part part, const RankParameters& parameters) {
    return LoadOf(GraphOf(part, cut), parameters, cut.precision);
  };
  CutLoads loads;
  if (SpreadsExperts(layout)) {
    loads = Loads(WithWholeExperts(cut), recompute);
  } else {
    for (const LayerKind kind : kinds_) {
      if (kind == LayerKind::kExperts) continue;
      loads.layers.of(kind) =
          load_of(PartOf(kind), ParametersOfLayer(model_, cut, kind));
    }
    loads.embedding =
        load_of(Part::kEmbedding, ParametersOfEmbedding(model_, cut));
    loads.head = load_of(Part::kHead, ParametersOfHead(model_, cut));
  }
  if (model_.num_expert_layers() > 0) {
    loads.layers.of(LayerKind::kExperts) =
        load_of(PartOf(LayerKind::kExperts),
                ParametersOfLayer(model_, cut, LayerKind::kExperts));
  }
  return loads;
}

const std::vector<Recompute>& CutCosts::Recomputes(const Layout& layout) {
  Key key = KeyOf(layout, Recompute::kNone);
  key.micro_batch = 1;
  const auto make = [&] {
    Layout one_sequence = layout;
    one_sequence.micro_batch = 1;
    return RecomputeLadder(PriceRecompute(one_sequence));
  };
  return Find(key, Recompute::kNone, make, &caches_->recomputes);
}

std::vector<RecomputeCandidate> CutCosts::PriceRecompute(
    const Layout& layout) const {
  // Measured times of the very ops tell which are worth recomputing.
  if (cost_.HasTables() && WorkersRun(layout)) {
    return millrace::PriceRecompute(model_, layout, cost_);
  }
  LayerCounts counts;
  for (int64_t layer = 0; layer < model_.num_layers; ++layer) {
    counts.Count(KindOfLayer(model_, layer));
  }
  const auto with = [&](Recompute set) {
    Layout cut = WithRecompute(layout, set);
    cut.pipeline = 1;  // Experts as near as they can be.
    RecomputeCandidate mean{.op = set};
    for (const LayerKind kind : kinds_) {
      const int64_t num_layers = counts.of(kind);
      LayerGraph graph = GraphOf(PartOf(kind), cut);
      std::erase_if(graph.ops, [](const LayerOp& op) {
        return op.phase != Phase::kRecompute;
      });
      const LayerTime time =
          TimeOfLayer(PriceLayer(graph, cut, implementation_, cost_), cut,
                      implementation_, cost_);
      const double share = static_cast<double>(num_layers) /
                           static_cast<double>(model_.num_layers);
      mean.bytes += share * static_cast<double>(graph.activation_bytes);
      mean.seconds += share * time.recompute.total();
    }
    return mean;
  };
  return RecomputeCandidates(with);
}

}  // namespace millrace
