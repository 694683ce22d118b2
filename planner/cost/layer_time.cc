#include "planner/cost/layer_time.h"

#include <algorithm>
#include <numeric>
#include <variant>

#include "planner/program/op_work.h"

namespace millrace {
namespace {

// The share of the rate of long collectives that collectives of 2 to 32 MiB
// between products reach in the measurements that vTrain's table adds up. It
// was fitted to half of that table.
constexpr double kShortCollectiveRate = 0.44;

Mesh MeshOf(const Layout& layout, const Implementation& implementation) {
  return MeshOf(layout, implementation.pipeline_outermost
                            ? AxisOrder::kPipelineOutermost
                            : AxisOrder::kPipelineInsideData);
}

GroupPlacement::Axis Along(const Mesh& mesh, Axis axis) {
  return {.size = mesh.size(axis), .stride = mesh.stride(axis)};
}

// The ranks beside one another that experts are spread over before the data
// axis: tensor (if experts are whole) and context.
GroupPlacement::Axis NearExpertAxis(const Layout& layout) {
  const Mesh mesh = MeshOf(layout);
  const int64_t stride = mesh.stride(Axis::kExpert);
  const int64_t end = mesh.size(Axis::kContext) * mesh.stride(Axis::kContext);
  return {.size = end / stride, .stride = stride};
}

// Adds ops to the time of their phase. The only place that asks for prices of a
// layer's ops.
class OpPricing {
 public:
  OpPricing(const Layout& layout, const Implementation& implementation,
            const CostModel& cost)
      : layout_(layout), style_(implementation), cost_(cost) {}

  void Add(const LayerOp& op, PhaseTime* phase) const {
    switch (op.kind) {
      case OpKind::kGemm:
      case OpKind::kFloat8Gemm:
      case OpKind::kFloat8BlockGemm: {
        const auto& gemm = std::get<GemmAttributes>(op.attributes);
        phase->gemms += cost_.GemmSeconds({.m = gemm.m,
                                           .n = gemm.n,
                                           .k = gemm.k,
                                           .format = FormatOfProduct(op.kind),
                                           .trans_a = gemm.trans_a,
                                           .trans_b = gemm.trans_b});
        break;
      }
      case OpKind::kGroupedGemm:
      case OpKind::kScaledGemm:
        phase->gemms += GroupedGemmSeconds(op);
        break;
      case OpKind::kAttentionForward:
      case OpKind::kFloat8AttentionForward:
      case OpKind::kAttentionBackward:
      case OpKind::kGeneralAttentionForward:
      case OpKind::kGeneralAttentionBackward:
        phase->attention += AttentionSeconds(op) / style_.attention_rate;
        break;
      case OpKind::kUnfusedAttentionForward:
      case OpKind::kUnfusedAttentionBackward:
        phase->attention += AttentionSeconds(op);
        break;
      case OpKind::kLinearCrossEntropy:
      case OpKind::kCrossEntropyStats:
      case OpKind::kCrossEntropyGradient:
        AddLoss(op, phase);
        break;
      case OpKind::kAllGather:
      case OpKind::kReduceScatter:
      case OpKind::kAllReduce:
        AddTensorCollective(op, phase);
        return;
      case OpKind::kContextRing:
      case OpKind::kContextGather:
      case OpKind::kContextReduceScatter:
        ++phase->launches;
        phase->context += cost_.CollectiveSeconds(
            op.kind == OpKind::kContextGather          ? OpKind::kAllGather
            : op.kind == OpKind::kContextReduceScatter ? OpKind::kReduceScatter
                                                       : op.kind,
            std::get<ExchangeAttributes>(op.attributes).bytes,
            ContextGroup(layout_));
        return;
      case OpKind::kExpertExchange:
        ++phase->launches;
        return;
      default:
        phase->bandwidth += cost_.BandwidthSeconds(
            WorkOf(layout_, op.kind, op.attributes).bytes, op.launches);
        break;
    }
    if (!op.in_graph) phase->launches += op.launches;
  }

 private:
  double GroupedGemmSeconds(const LayerOp& op) const {
    const auto& gemm = std::get<GroupedGemmAttributes>(op.attributes);
    const bool scaled = gemm.format != GemmFormat::kAsStored;
    const double seconds =
        cost_.GemmSeconds(gemm) / (scaled ? style_.low_precision_rate : 1);
    // Experts' kernels one after the other.
    return seconds + (op.launches - 1) * cost_.profile().launch_overhead_s;
  }

  double AttentionSeconds(const LayerOp& op) const {
    const auto* whole = std::get_if<AttentionAttributes>(&op.attributes);
    return cost_.AttentionSeconds(
        op.kind, whole != nullptr
                     ? GeneralOf(*whole)
                     : std::get<GeneralAttentionAttributes>(op.attributes));
  }

  // The products of head and loss, and passes over the logits: one for the
  // statistics, and two for the gradient, which overwrites them.
  void AddLoss(const LayerOp& op, PhaseTime* phase) const {
    const auto& a = std::get<VocabAttributes>(op.attributes);
    const int64_t tokens = a.num_tokens, hidden = a.hidden, rows = a.vocab_rows;
    const bool is_stats = op.kind == OpKind::kCrossEntropyStats;
    const bool has_logits = is_stats || !a.keeps_logits;
    if (has_logits) {
      phase->gemms += cost_.GemmSeconds(
          {.m = tokens, .n = rows, .k = hidden, .trans_b = true});
    }
    if (!is_stats) {
      phase->gemms += cost_.GemmSeconds({.m = tokens, .n = hidden, .k = rows});
      phase->gemms += cost_.GemmSeconds(
          {.m = rows, .n = hidden, .k = tokens, .trans_a = true});
    }
    const double pass =
        static_cast<double>(DTypeBytes(ActivationType(layout_.precision))) *
        static_cast<double>(tokens * rows);
    const int32_t passes = op.kind == OpKind::kLinearCrossEntropy ? 3
                           : is_stats                             ? 1
                                                                  : 2;
    phase->bandwidth += cost_.BandwidthSeconds(passes * pass, op.launches);
  }

  void AddTensorCollective(const LayerOp& op, PhaseTime* phase) const {
    const auto& a = std::get<CollectiveAttributes>(op.attributes);
    const bool is_added = style_.adds_tensor_to_launches;
    if (!is_added) ++phase->launches;
    phase->tensor +=
        cost_.CollectiveSeconds(op.kind,
                                static_cast<double>(a.num_elements) *
                                    static_cast<double>(DTypeBytes(a.dtype)),
                                TensorGroup(layout_)) /
        (is_added ? kShortCollectiveRate : 1);
  }

  const Layout& layout_;
  const Implementation& style_;
  const CostModel& cost_;
};

}  // namespace

GroupPlacement TensorGroup(const Layout& layout) {
  return {.inner = Along(MeshOf(layout), Axis::kTensor), .outer = {}};
}

GroupPlacement ContextGroup(const Layout& layout) {
  return {.inner = Along(MeshOf(layout), Axis::kContext), .outer = {}};
}

int64_t PipelineStride(const Layout& layout,
                       const Implementation& implementation) {
  return MeshOf(layout, implementation).stride(Axis::kPipeline);
}

GroupPlacement ReplicaGroup(const Layout& layout,
                            const Implementation& implementation) {
  const Mesh mesh = MeshOf(layout, implementation);
  return {.inner = Along(mesh, Axis::kContext),
          .outer = Along(mesh, Axis::kData),
          .relays_to_ports = implementation.relays_to_ports};
}

GroupPlacement ShardPlacement(const Layout& layout,
                              const Implementation& implementation) {
  GroupPlacement group = ReplicaGroup(layout, implementation);
  group.outer.size = layout.group_data();
  return group;
}

GroupPlacement AcrossPlacement(const Layout& layout,
                               const Implementation& implementation) {
  GroupPlacement group = ReplicaGroup(layout, implementation);
  group.inner = {.size = layout.data_groups,
                 .stride = group.outer.stride * layout.group_data()};
  group.outer = {};
  return group;
}

GroupPlacement ExpertGroup(const Layout& layout,
                           const Implementation& implementation) {
  const GroupPlacement::Axis near = NearExpertAxis(layout);
  const int64_t num_near = std::gcd<int64_t>(layout.expert, near.size);
  return {
      .inner = {.size = num_near, .stride = near.stride},
      .outer = {.size = layout.expert / num_near,
                .stride = ReplicaGroup(layout, implementation).outer.stride}};
}

GroupPlacement ExpertReplicaGroup(const Layout& layout,
                                  const Implementation& implementation) {
  const GroupPlacement experts = ExpertGroup(layout, implementation);
  const GroupPlacement::Axis near = NearExpertAxis(layout);
  return {.inner = {.size = near.size / experts.inner.size,
                    .stride = near.stride * experts.inner.size},
          .outer = {.size = layout.data / experts.outer.size,
                    .stride = experts.outer.stride * experts.outer.size},
          .relays_to_ports = implementation.relays_to_ports};
}

PricedLayer PriceLayer(const LayerGraph& graph, const Layout& layout,
                       const Implementation& implementation,
                       const CostModel& cost) {
  PricedLayer layer;
  const OpPricing pricing(layout, implementation, cost);
  for (const LayerOp& op : graph.ops) {
    if (op.kind == OpKind::kExpertExchange) {
      layer.exchanges.push_back(
          {.phase = op.phase,
           .attributes = std::get<ExchangeAttributes>(op.attributes)});
    }
    pricing.Add(op, &layer.phases[static_cast<size_t>(op.phase)]);
  }
  return layer;
}

LayerTime TimeOfLayer(const PricedLayer& layer, const Layout& layout,
                      const Implementation& implementation,
                      const CostModel& cost) {
  std::array<PhaseTime, PricedLayer::kNumPhases> phases = layer.phases;
  for (const auto& [phase, exchange] : layer.exchanges) {
    phases[static_cast<size_t>(phase)].expert += cost.CollectiveSeconds(
        OpKind::kExpertExchange, exchange.bytes,
        ExpertGroup(layout, implementation), exchange.experts_per_row);
  }
  const CostConstants& constants = cost.constants();
  const double slowdown = cost.profile().overlap.compute - 1;
  auto hide = [&](double* comm, double under, double share, double* compute) {
    const double hidden = share * std::min(*comm, under);
    *comm -= hidden;
    *compute += slowdown * hidden;
  };
  auto pass_of = [&](Phase which) {
    const PhaseTime& phase = phases[static_cast<size_t>(which)];
    PassTime pass{.compute = phase.compute(),
                  .tensor = phase.tensor,
                  .context = phase.context,
                  .expert = phase.expert};
    if (implementation.overlaps_tensor) {
      hide(&pass.tensor, phase.gemms, constants.tensor_hidden_share,
           &pass.compute);
    }
    // A ring computes with its own part first.
    if (implementation.context_ring && layout.context > 1) {
      hide(&pass.context,
           phase.attention * (layout.context - 1) / layout.context, 1,
           &pass.compute);
    }
    if (implementation.overlaps_experts) {
      // Expert communication hides under all that another micro-batch's layers
      // compute.
      hide(&pass.expert, phase.compute(), 1, &pass.compute);
    }
    if (implementation.launches_from_host) {
      // The host works while the device does, but on every kernel.
      const double covered = implementation.adds_tensor_to_launches
                                 ? pass.total() - pass.tensor
                                 : pass.total();
      pass.compute += std::max(
          0.0, static_cast<double>(phase.launches) * constants.host_launch_s -
                   covered);
    }
    return pass;
  };
  LayerTime time{.forward = pass_of(Phase::kForward),
                 .recompute = pass_of(Phase::kRecompute),
                 .input_gradient = pass_of(Phase::kInputGradient)};
  // Inputs are gathered for it while input gradients are computed.
  PassTime weight_gradient = pass_of(Phase::kWeightGradient);
  if (!implementation.overlaps_tensor) {
    hide(&weight_gradient.tensor,
         phases[static_cast<size_t>(Phase::kInputGradient)].gemms,
         constants.tensor_hidden_share, &weight_gradient.compute);
  }
  time.weight_gradient = weight_gradient.compute;
  weight_gradient.compute = 0;
  time.input_gradient += weight_gradient;
  return time;
}

PricedLayer PriceMeasuredLayer(const LayerGraph& graph, const Layout& layout,
                               const CostModel& cost) {
  // Without the axes that layers do not depend on.
  const Layout plain{.tensor = layout.tensor,
                     .micro_batch = layout.micro_batch,
                     .precision = layout.precision,
                     .copy_engines = layout.copy_engines};
  PricedLayer layer;
  for (const LayerOp& op : graph.ops) {
    PhaseTime& phase = layer.phases[static_cast<size_t>(op.phase)];
    (IsCollective(op.kind) ? phase.tensor : phase.bandwidth) +=
        cost.Seconds(plain, op.kind, op.attributes);
  }
  return layer;
}

LayerTime TimeOfMeasuredLayer(const PricedLayer& layer, double contention,
                              const OverlapFactors& overlap) {
  const auto computing = [&](Phase phase) {
    return contention * layer.of(phase).compute();
  };
  const double backward_comm = layer.of(Phase::kRecompute).tensor +
                               layer.of(Phase::kInputGradient).tensor +
                               layer.of(Phase::kWeightGradient).tensor;
  const double recompute = computing(Phase::kRecompute);
  const double weight_gradient = computing(Phase::kWeightGradient);
  const double hidden = std::min(
      backward_comm, (recompute + weight_gradient) / overlap.communication);
  return {.forward = {.compute = computing(Phase::kForward),
                      .tensor = layer.of(Phase::kForward).tensor},
          .recompute = {.compute = recompute},
          .input_gradient = {.compute = computing(Phase::kInputGradient),
                             .tensor = backward_comm - hidden},
          .weight_gradient = weight_gradient + (overlap.compute - 1) * hidden *
                                                   overlap.communication};
}

}  // namespace millrace
