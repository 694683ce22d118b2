#include "planner/cost/stage_time.h"

#include <algorithm>
#include <iterator>
#include <variant>

#include "planner/cost/host_sharing.h"

namespace millrace {
namespace {

constexpr double kRoundedBytes = 2;  // For a gradient in bf16.
// For a weight.
constexpr double kMasterWeightBytes = 4;
constexpr double kStoredWeightBytes = 2;
constexpr double kWeightBytesInFloat8 = 1;

}  // namespace

LayerLoad LoadOf(const LayerGraph& graph, const RankParameters& parameters,
                 Precision precision) {
  const int64_t element_bytes = DTypeBytes(ActivationType(precision));
  LayerLoad load{.parameters = parameters,
                 .activation_bytes = graph.activation_bytes,
                 .working_bytes = graph.working_bytes};
  auto hold = [&](int64_t count, int64_t m, int64_t n, int64_t k) {
    load.weight_gradient_bytes += element_bytes * count * k * (m + n);
  };
  for (const LayerOp& op : graph.ops) {
    if (op.kind == OpKind::kFloat8Gemm && op.phase == Phase::kForward) {
      const auto& product = std::get<GemmAttributes>(op.attributes);
      load.parameters.float8 += static_cast<double>(product.n * product.k);
    }
    if (op.kind == OpKind::kFloat8BlockGemm && op.phase == Phase::kForward) {
      const auto& product = std::get<GemmAttributes>(op.attributes);
      load.parameters.copied += static_cast<double>(product.n * product.k);
    }
    if (op.phase != Phase::kWeightGradient) continue;
    if (const auto* a = std::get_if<GemmAttributes>(&op.attributes)) {
      hold(1, a->m, a->n, a->k);
    }
    if (const auto* a = std::get_if<GroupedGemmAttributes>(&op.attributes)) {
      hold(a->count, a->m, a->n, a->k);
    }
  }
  return load;
}

StageList StagesOf(const ModelSpec& model, const Layout& layout,
                   const Implementation& implementation) {
  std::vector<StageKind> all(static_cast<size_t>(layout.pipeline));
  const std::vector<LayerRange> chunks =
      ChunkLayers(model, layout, implementation);
  for (size_t c = 0; c < chunks.size(); ++c) {
    StageKind& stage = all[c % all.size()];
    LayerCounts layers;
    for (int64_t layer = chunks[c].begin; layer < chunks[c].end; ++layer) {
      layers.Count(KindOfLayer(model, layer));
      stage.layers.Count(KindOfLayer(model, layer));
    }
    if (layout.interleave == 1) continue;
    if (c < all.size()) stage.first_chunk = layers;
    stage.last_chunk = layers;
  }
  all.front().has_embedding = true;
  all.back().has_head = true;
  StageList list;
  for (size_t i = 0; i < all.size(); ++i) {
    all[i].first = static_cast<int32_t>(i);
    auto kind = std::find_if(
        list.kinds.begin(), list.kinds.end(),
        [&](const StageKind& known) { return known.is_like(all[i]); });
    if (kind == list.kinds.end()) {
      list.kinds.push_back(all[i]);
      list.stages_of_kind.emplace_back();
      kind = std::prev(list.kinds.end());
    }
    const auto kind_idx = kind - list.kinds.begin();
    list.kind_of_stage.push_back(static_cast<int32_t>(kind_idx));
    list.stages_of_kind[static_cast<size_t>(kind_idx)].push_back(all[i].first);
  }
  return list;
}

const StageKind& SlowestStage(const CutTimes& cut,
                              const std::vector<StageKind>& kinds) {
  const StageKind* slowest = &kinds.front();
  double most = 0;
  for (const StageKind& kind : kinds) {
    const double seconds = TimeOfStage(cut, kind).total();
    if (seconds <= most) continue;
    most = seconds;
    slowest = &kind;
  }
  return *slowest;
}

namespace {

// The workers' buckets: the embedding, the matrices of each layer, the head and
// all norms, whose gradients are summed over the tensor axis as well.
ReplicaTraffic MeasuredTraffic(const ModelSpec& model, const Layout& layout,
                               const CostModel& cost,
                               const Implementation& implementation,
                               const CutLoads& cut, const StageKind& stage) {
  ReplicaTraffic traffic;
  double longest = 0;
  const auto weight_bytes =
      static_cast<double>(DTypeBytes(ActivationType(layout.precision)));
  const double gradient_bytes =
      layout.rounds_gradients() ? kRoundedBytes : implementation.gradient_bytes;
  const double across_bytes =
      layout.rounds_across() ? kRoundedBytes : gradient_bytes;
  // `float8`: those of the elements that are gathered in 8 bits.
  const auto add = [&](double count, double elements,
                       const GroupPlacement& group, double float8 = 0) {
    if (count == 0 || elements <= 0 || group.size() <= 1) return;
    const auto seconds = [&](OpKind kind) {
      return cost.CollectiveSeconds(kind, gradient_bytes * elements, group);
    };
    const bool is_cut = layout.data_groups > 1;
    double reduce_s =
        seconds(layout.zero == 0 && !is_cut ? OpKind::kAllReduce
                                            : OpKind::kReduceScatter);
    double across_s = 0;
    if (is_cut) {
      across_s = cost.CollectiveSeconds(
          OpKind::kAllReduce,
          across_bytes * elements / static_cast<double>(group.size()),
          AcrossPlacement(layout, implementation));
      if (layout.zero == 0) reduce_s += seconds(OpKind::kAllGather);
    }
    traffic.reduce += count * reduce_s;
    traffic.across += count * across_s;
    longest = std::max(longest, reduce_s + across_s);
    if (layout.zero == 0) return;
    traffic.gather +=
        count * cost.CollectiveSeconds(
                    OpKind::kAllGather,
                    weight_bytes * elements -
                        (weight_bytes - kWeightBytesInFloat8) * float8,
                    group);
  };
  const GroupPlacement replicas = ShardPlacement(layout, implementation);
  // All kinds of dense layers have the same parameters, not all in 8 bits.
  const auto num_experts =
      static_cast<double>(stage.layers.of(LayerKind::kExperts));
  const double num_dense =
      static_cast<double>(stage.layers.total()) - num_experts;
  RankParameters dense;
  double float8 = 0;  // Of all.
  for (const LayerKind kind : kLayerKinds) {
    if (kind == LayerKind::kExperts || stage.layers.of(kind) == 0) continue;
    dense = cut.layers.of(kind).parameters;
    float8 += static_cast<double>(stage.layers.of(kind)) * dense.float8;
  }
  const RankParameters& experts = cut.layers.of(LayerKind::kExperts).parameters;
  const auto hidden = static_cast<double>(model.hidden);
  const double layer_norms =
      static_cast<double>(model.num_layer_norms()) * hidden;
  const double norms =
      layer_norms * (num_dense + num_experts) + (stage.has_head ? hidden : 0);
  add(num_dense, dense.dense - layer_norms, replicas,
      num_dense > 0 ? float8 / num_dense : 0);
  add(num_experts, experts.dense - layer_norms, replicas);
  add(num_experts, experts.experts, ExpertReplicaGroup(layout, implementation));
  if (stage.has_embedding) add(1, cut.embedding.parameters.dense, replicas);
  if (stage.has_head) add(1, cut.head.parameters.dense - hidden, replicas);
  add(1, norms, replicas);
  if (layout.tensor > 1) {
    const double sum_s = cost.CollectiveSeconds(
        OpKind::kAllReduce, implementation.gradient_bytes * norms,
        TensorGroup(layout));
    traffic.reduce += sum_s;
    longest = std::max(longest, sum_s);
  }
  if (longest > 0) {
    traffic.buckets = (traffic.reduce + traffic.across) / longest;
  }
  return traffic;
}

// `slice` is the rank's part of what its group holds.
// `float8`: the part of `owned` in 8 bits.
double MeasuredOptimizerSeconds(const Layout& layout, const CostModel& tables,
                                double held, double owned, double slice,
                                double float8) {
  const auto seconds = [&](OpKind kind, double elements) {
    const OptimizerAttributes bucket{
        .num_elements = static_cast<int64_t>(elements), .data_sharded = false};
    return tables.Seconds(layout, kind, bucket);
  };
  double sum =
      seconds(OpKind::kSquaredNorm, owned) + seconds(OpKind::kAdamW, owned);
  if (layout.rounds_gradients()) {
    const double times =
        layout.shards_gradients() ? layout.most_microbatches() : 1;
    sum += times * (seconds(OpKind::kRoundGradients, held) +
                    seconds(OpKind::kWidenGradients, owned));
  } else if (layout.rounds_across()) {
    sum += seconds(OpKind::kRoundGradients, slice) +
           seconds(OpKind::kWidenGradients, slice);
  }
  if (layout.shards_gradients()) {
    sum += (layout.most_microbatches() - 1) *
           seconds(OpKind::kAccumulateGradients, owned);
  }
  if (float8 > 0) {
    const WeightBucketAttributes weights{
        .num_elements = static_cast<int64_t>(float8), .data_sharded = false};
    sum += tables.Seconds(layout, OpKind::kWeightAmax, weights) +
           tables.Seconds(layout, OpKind::kQuantizeWeights, weights);
  }
  if (layout.num_ranks() > 1) {
    sum += tables.Seconds(
        layout, OpKind::kAllReduce,
        CollectiveAttributes{.group = Group::kWorld,
                             .num_elements = NumStepScalars(layout),
                             .dtype = DType::kFloat64});
  }
  return sum;
}

}  // namespace

ReplicaTraffic TrafficOf(const ModelSpec& model, const Layout& layout,
                         const Implementation& implementation,
                         const CostModel& cost, const CutLoads& cut,
                         const StageKind& stage) {
  if (!cost.HasSheet()) {
    return MeasuredTraffic(model, layout, cost, implementation, cut, stage);
  }
  const RankParameters parameters = LoadOfStage(cut, stage, 0).parameters;
  ReplicaTraffic traffic;
  // About one bucket a layer, and smaller ones of large layers, as frameworks
  // cut them.
  constexpr double kBucketElements = 40e6;
  traffic.buckets = std::max(static_cast<double>(stage.layers.total()),
                             (parameters.dense + parameters.experts) /
                                 std::max(kBucketElements, 1e6 * layout.data));
  auto add = [&](double elements, const GroupPlacement& group,
                 double float8 = 0) {
    if (elements <= 0 || group.size() <= 1) return;
    auto seconds = [&](OpKind kind, double bytes) {
      return traffic.buckets *
             cost.CollectiveSeconds(kind, bytes * elements / traffic.buckets,
                                    group);
    };
    const double gradient_bytes = layout.rounds_gradients()
                                      ? kRoundedBytes
                                      : implementation.gradient_bytes;
    if (layout.zero == 0 && layout.data_groups == 1) {
      traffic.reduce += seconds(OpKind::kAllReduce, gradient_bytes);
      return;
    }
    traffic.reduce += seconds(OpKind::kReduceScatter, gradient_bytes);
    if (layout.data_groups > 1) {
      const double across_bytes =
          layout.rounds_across() ? kRoundedBytes : gradient_bytes;
      const double bytes = across_bytes * elements / traffic.buckets /
                           static_cast<double>(group.size());
      traffic.across +=
          traffic.buckets *
          cost.CollectiveSeconds(OpKind::kAllReduce, bytes,
                                 AcrossPlacement(layout, implementation));
    }
    if (layout.zero == 0) {
      traffic.reduce += seconds(OpKind::kAllGather, gradient_bytes);
      return;
    }
    traffic.gather += seconds(
        OpKind::kAllGather,
        kStoredWeightBytes -
            (kStoredWeightBytes - kWeightBytesInFloat8) * float8 / elements);
  };
  add(parameters.dense, ShardPlacement(layout, implementation),
      parameters.float8);
  add(parameters.experts, ExpertReplicaGroup(layout, implementation));
  return traffic;
}

double OptimizerSeconds(const Layout& layout,
                        const Implementation& implementation,
                        const CostModel& cost,
                        const RankParameters& parameters) {
  const double replicas =
      static_cast<double>(layout.group_data()) * layout.context;
  const double all = parameters.dense + parameters.experts;
  const double slice = parameters.dense / replicas +
                       parameters.experts / NumExpertReplicas(layout);
  const double owned = layout.zero >= 1 ? slice : all;
  const double float8 =
      layout.zero >= 1 ? parameters.float8 / replicas : parameters.float8;
  if (!cost.HasSheet()) {
    const HardwareProfile& profile = cost.profile();
    return ContentionOf(NumComputing(layout, profile), profile) *
           MeasuredOptimizerSeconds(layout, cost, all, owned, slice, float8);
  }
  const double held = layout.zero >= 2 ? owned : all;
  // AdamW reads the gradient and reads and writes master weight and both
  // moments, and writes the weight; its norm is read before, and gradients are
  // zeroed after.
  const double saved_bytes = 2 * (4 - MomentBytes(layout.moments));
  const double state_bytes =
      2 * (implementation.optimizer_bytes - saved_bytes) + 2;
  double bytes = owned * (state_bytes + 2 * implementation.gradient_bytes) +
                 held * implementation.gradient_bytes;
  // Weights in 8 bits are read twice, and written in fewer bytes.
  bytes += float8 *
           (2 * kMasterWeightBytes + kWeightBytesInFloat8 - kStoredWeightBytes);
  if (layout.rounds_gradients()) {
    // All are rounded and what this rank gets of them is widened, after each
    // micro-batch where gradients are sharded.
    const double times = layout.zero >= 2 ? layout.most_microbatches() : 1;
    bytes +=
        times * (kRoundedBytes + implementation.gradient_bytes) * (all + owned);
  } else if (layout.rounds_across()) {
    bytes += (kRoundedBytes + implementation.gradient_bytes) * 2 * slice;
  }
  return cost.MemorySeconds(bytes);
}

StageKind WholeModel(const ModelSpec& model) {
  StageKind whole{.layers = {}, .has_embedding = true, .has_head = true};
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    whole.layers.Count(KindOfLayer(model, layer));
  }
  return whole;
}

StageLoad LoadOfStage(const CutLoads& cut, const StageKind& stage,
                      double stream_bytes) {
  StageLoad load{.stream_bytes = stream_bytes};
  for (const LayerKind kind : kLayerKinds) {
    AddLayers(cut.layers.of(kind), stage.layers.of(kind), &load);
  }
  const auto held_by = [&](const LayerCounts& chunk) {
    int64_t bytes = 0;
    for (const LayerKind kind : kLayerKinds) {
      bytes += chunk.of(kind) * cut.layers.of(kind).activation_bytes;
    }
    return bytes;
  };
  load.first_chunk_bytes = held_by(stage.first_chunk);
  load.last_chunk_bytes = held_by(stage.last_chunk);
  if (stage.has_embedding) {
    AddEnd(cut.embedding, &load);
    load.first_chunk_bytes += cut.embedding.activation_bytes;
  }
  if (stage.has_head) {
    AddEnd(cut.head, &load);
    load.last_chunk_bytes += cut.head.activation_bytes;
  }
  return load;
}

StageLoad MeanLoad(const CutLoads& cut, const StageKind& whole,
                   int32_t num_stages) {
  StageLoad load = LoadOfStage(cut, whole, 0);
  load.parameters.dense /= num_stages;
  load.parameters.experts /= num_stages;
  load.parameters.float8 /= num_stages;
  load.parameters.copied /= num_stages;
  load.activation_bytes /= num_stages;
  load.end_parameters = load.largest_end = 0;
  load.end_working_bytes = 0;
  const auto size = [](const RankParameters& parameters) {
    return parameters.dense + parameters.experts;
  };
  // A stage may have layers of one kind alone.
  for (const LayerKind kind : kLayerKinds) {
    if (whole.layers.of(kind) == 0) continue;
    const LayerLoad& layer = cut.layers.of(kind);
    load.layer_parameters =
        std::min(load.layer_parameters, size(layer.parameters));
    // More in 8 bits take less room while they are gathered.
    load.layer_float8 = std::max(load.layer_float8, layer.parameters.float8);
    load.layer_working_bytes =
        std::min(load.layer_working_bytes, layer.working_bytes);
  }
  return load;
}

double ExposedSeconds(double comm, double buckets, double window,
                      double hidden_share, const OverlapFactors& overlap,
                      double* slowdown) {
  if (comm <= 0) return 0;
  const double hidden = std::min(comm * std::min(hidden_share, 1 - 1 / buckets),
                                 window / overlap.communication);
  *slowdown += (overlap.compute - 1) * hidden * overlap.communication;
  return comm - hidden;
}

}  // namespace millrace
