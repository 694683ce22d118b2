#include "planner/cost/layer_time.h"

#include <algorithm>
#include <numeric>

namespace millrace {
namespace {

// Of the rate of long collectives, what those of 2 to 32 MiB between products
// reach in the measurements that vTrain's table adds up; fitted to half of it.
constexpr double kShortCollectiveRate = 0.44;

// What a ring moves in memory beside attention itself: after each part the
// output so far is scaled and added to in fp32, backward the gradient of the
// queries (Liu et al., 2023).
double RingBytes(const AttentionWork& attention, const Layout& layout) {
  constexpr double kBytes = 4 + 4 + 2;  // Sum in, sum out, part in.
  return kBytes * layout.context *
         static_cast<double>(attention.num_sequences * attention.num_heads *
                             attention.query_tokens * attention.value_head_dim);
}

// The ranks beside one another that experts are spread over before the data
// axis: tensor (if experts are whole) and context.
GroupPlacement::Axis NearExpertAxis(const Layout& layout) {
  if (layout.expert_tensor > 1) {
    return {.size = layout.context, .stride = layout.tensor};
  }
  return {.size = int64_t{layout.tensor} * layout.context, .stride = 1};
}

}  // namespace

GroupPlacement TensorGroup(const Layout& layout) {
  return {.inner = {.size = layout.tensor, .stride = 1}, .outer = {}};
}

GroupPlacement ContextGroup(const Layout& layout) {
  return {.inner = {.size = layout.context, .stride = layout.tensor},
          .outer = {}};
}

int64_t PipelineStride(const Layout& layout,
                       const Implementation& implementation) {
  const int64_t inside = int64_t{layout.tensor} * layout.context;
  return implementation.pipeline_outermost ? inside * layout.data : inside;
}

GroupPlacement ReplicaGroup(const Layout& layout,
                            const Implementation& implementation) {
  const int64_t inside = int64_t{layout.tensor} * layout.context;
  return {.inner = {.size = layout.context, .stride = layout.tensor},
          .outer = {.size = layout.data,
                    .stride = implementation.pipeline_outermost
                                  ? inside
                                  : inside * layout.pipeline},
          .relays_to_ports = implementation.relays_to_ports};
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

PassTime& PassTime::operator+=(const PassTime& other) {
  compute += other.compute;
  tensor += other.tensor;
  context += other.context;
  expert += other.expert;
  return *this;
}

PassTime operator*(double count, PassTime time) {
  return {.compute = count * time.compute,
          .tensor = count * time.tensor,
          .context = count * time.context,
          .expert = count * time.expert};
}

LayerTime& LayerTime::operator+=(const LayerTime& other) {
  forward += other.forward;
  recompute += other.recompute;
  input_gradient += other.input_gradient;
  weight_gradient += other.weight_gradient;
  return *this;
}

LayerTime operator*(double count, LayerTime time) {
  return {.forward = count * time.forward,
          .recompute = count * time.recompute,
          .input_gradient = count * time.input_gradient,
          .weight_gradient = count * time.weight_gradient};
}

PricedLayer PriceLayer(const LayerWork& work, const Layout& layout,
                       const Implementation& implementation,
                       const CostModel& cost) {
  PricedLayer layer;
  auto phase_of = [&](WorkPhase phase) -> PhaseTime& {
    return layer.phases[static_cast<size_t>(phase)];
  };
  for (const GemmWork& gemm : work.gemms) {
    PhaseTime& phase = phase_of(gemm.phase);
    const bool quantized =
        gemm.low_precision && layout.gemm_format != GemmFormat::kAsStored;
    phase.gemms += cost.GemmSeconds(gemm, layout.gemm_format) /
                   (quantized ? implementation.low_precision_rate : 1);
    // Experts' kernels one after the other.
    phase.gemms += static_cast<double>(gemm.launches - 1) *
                   cost.profile().launch_overhead_s;
    if (!gemm.in_graph) phase.launches += gemm.launches;
  }
  for (const AttentionWork& attention : work.attention) {
    PhaseTime& phase = phase_of(attention.phase);
    phase.attention += cost.AttentionSeconds(attention) /
                       (attention.flash ? implementation.attention_rate : 1);
    if (!attention.in_graph) phase.launches += attention.flash ? 1 : 2;
    if (layout.context > 1 && implementation.context_ring) {
      phase.bandwidth += cost.MemorySeconds(RingBytes(attention, layout));
    }
  }
  for (const BandwidthWork& bandwidth : work.bandwidth) {
    PhaseTime& phase = phase_of(bandwidth.phase);
    phase.bandwidth += cost.BandwidthSeconds(bandwidth);
    if (!bandwidth.in_graph) phase.launches += bandwidth.launches;
  }
  for (const CommWork& comm : work.comm) {
    PhaseTime& phase = phase_of(comm.phase);
    const bool is_added = comm.axis == CommAxis::kTensor &&
                          implementation.adds_tensor_to_launches;
    if (!is_added) ++phase.launches;
    switch (comm.axis) {
      case CommAxis::kTensor:
        phase.tensor +=
            cost.CollectiveSeconds(comm.kind, comm.bytes, TensorGroup(layout)) /
            (is_added ? kShortCollectiveRate : 1);
        break;
      case CommAxis::kContext:
        phase.context +=
            cost.CollectiveSeconds(comm.kind, comm.bytes, ContextGroup(layout));
        break;
      case CommAxis::kExpert:
        layer.exchanges.push_back(comm);
        break;
    }
  }
  return layer;
}

LayerTime TimeOfLayer(const PricedLayer& layer, const Layout& layout,
                      const Implementation& implementation,
                      const CostModel& cost) {
  std::array<PhaseTime, PricedLayer::kNumPhases> phases = layer.phases;
  for (const CommWork& exchange : layer.exchanges) {
    phases[static_cast<size_t>(exchange.phase)].expert +=
        cost.CollectiveSeconds(exchange.kind, exchange.bytes,
                               ExpertGroup(layout, implementation),
                               exchange.experts_per_row);
  }
  const CostConstants& constants = cost.constants();
  const double slowdown = cost.profile().overlap.compute - 1;
  auto hide = [&](double* comm, double under, double share, double* compute) {
    const double hidden = share * std::min(*comm, under);
    *comm -= hidden;
    *compute += slowdown * hidden;
  };
  auto pass_of = [&](WorkPhase which) {
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
      // Of another micro-batch's layers, with everything these compute.
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
  LayerTime time{.forward = pass_of(WorkPhase::kForward),
                 .recompute = pass_of(WorkPhase::kRecompute),
                 .input_gradient = pass_of(WorkPhase::kInputGradient)};
  // Inputs are gathered for it while input gradients are computed.
  PassTime weight_gradient = pass_of(WorkPhase::kWeightGradient);
  if (!implementation.overlaps_tensor) {
    hide(&weight_gradient.tensor,
         phases[static_cast<size_t>(WorkPhase::kInputGradient)].gemms,
         constants.tensor_hidden_share, &weight_gradient.compute);
  }
  time.weight_gradient = weight_gradient.compute;
  weight_gradient.compute = 0;
  time.input_gradient += weight_gradient;
  return time;
}

}  // namespace millrace
