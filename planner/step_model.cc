#include "planner/step_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "planner/device_cost.h"
#include "planner/layer_time.h"

namespace millrace {
namespace {

// Bytes of one micro-batch that a layer keeps for its input gradients, and for
// its weight gradients from then on: inputs and gradients of outputs.
struct HeldBytes {
  int64_t activations = 0;
  int64_t weight_gradients = 0;
  int64_t working = 0;  // While it is computed.
};

HeldBytes HeldBy(const LayerWork& work) {
  constexpr int64_t kBytes = 2;
  HeldBytes held{.activations = work.activation_bytes,
                 .working = work.working_bytes};
  for (const GemmWork& gemm : work.gemms) {
    if (gemm.phase != WorkPhase::kWeightGradient) continue;
    held.weight_gradients += kBytes * gemm.count * gemm.k * (gemm.m + gemm.n);
  }
  return held;
}

// What one layer, or an end of the model, takes and holds under one way of
// cutting it.
struct CutTimes {
  LayerTime dense;
  LayerTime experts;
  LayerTime embedding;
  LayerTime head;
  RankParameters dense_parameters;
  RankParameters experts_parameters;
  RankParameters embedding_parameters;
  RankParameters head_parameters;
  HeldBytes dense_held, experts_held, embedding_held, head_held;
};

// What makes the cost of a layer: equal keys, equal costs.
struct CutKey {
  int32_t tensor, context, expert, expert_tensor, micro_batch;
  // Of the ranks between those that share experts; 0 without.
  int32_t replica_stride;
  int32_t kinds;  // Precision, format, recompute.
  friend bool operator==(const CutKey&, const CutKey&) = default;
};

struct KeyHash {
  size_t operator()(const CutKey& key) const {
    uint64_t hash = 0x9e3779b97f4a7c15u;
    for (const int32_t part :
         {key.tensor, key.context, key.expert, key.expert_tensor,
          key.micro_batch, key.replica_stride, key.kinds}) {
      hash = (hash ^ static_cast<uint32_t>(part)) * 0xff51afd7ed558ccdu;
      hash ^= hash >> 32;
    }
    return hash;
  }
};

// What a stage of a pipeline holds.
struct StageKind {
  int64_t num_dense = 0;
  int64_t num_experts = 0;
  bool has_embedding = false;
  bool has_head = false;
  int32_t first = 0;  // Of the stages of this kind.
  bool is_like(const StageKind& other) const {
    return num_dense == other.num_dense && num_experts == other.num_experts &&
           has_embedding == other.has_embedding && has_head == other.has_head;
  }
};

}  // namespace

struct StepModel::State {
  State(const ModelSpec& model_spec, const Implementation& how,
        DeviceCost device_cost)
      : model(model_spec), implementation(how), cost(std::move(device_cost)) {}

  const CutTimes& Cut(const Layout& layout);
  const std::vector<StageKind>& Stages(const Layout& layout);
  // A micro-batch's activations from one stage to the next, and where norms do
  // not share the tokens of the tensor axis, gathered there.
  double HopSeconds(const Layout& layout) const;

  const ModelSpec model;
  const Implementation implementation;
  const DeviceCost cost;
  std::unordered_map<CutKey, CutTimes, KeyHash> cuts;
  // The last one asked for, by recompute: the map keeps its elements' places.
  std::array<const std::pair<const CutKey, CutTimes>*, kNumRecomputes>
      recent_cuts{};
  // By pipeline << 32 | interleave: the kinds of stages there are.
  std::unordered_map<uint64_t, std::vector<StageKind>> stages;
};

const CutTimes& StepModel::State::Cut(const Layout& layout) {
  // Where experts lie on the tensor and context axes only, replicas do not
  // matter.
  const GroupPlacement experts = ExpertGroup(layout, implementation);
  const CutKey key{
      .tensor = layout.tensor,
      .context = layout.context,
      .expert = layout.expert,
      .expert_tensor = layout.expert_tensor,
      .micro_batch = layout.micro_batch,
      .replica_stride = experts.outer.size == 1
                            ? 0
                            : static_cast<int32_t>(experts.outer.stride),
      .kinds = static_cast<int32_t>(layout.precision) |
               static_cast<int32_t>(layout.gemm_format) << 8 |
               static_cast<int32_t>(layout.recompute) << 16 |
               static_cast<int32_t>(layout.pipeline > 1) << 24};
  // Searches ask for what differs in recompute alone in turn.
  const auto recent = static_cast<size_t>(layout.recompute);
  if (recent_cuts[recent] != nullptr && recent_cuts[recent]->first == key) {
    return recent_cuts[recent]->second;
  }
  const auto found = cuts.find(key);
  if (found != cuts.end()) {
    recent_cuts[recent] = &*found;
    return found->second;
  }
  CutTimes cut;
  auto add = [&](const LayerWork& work, LayerTime* time, HeldBytes* held) {
    *time = TimeOfLayer(work, layout, implementation, cost);
    *held = HeldBy(work);
  };
  if (layout.expert > 1 || layout.expert_tensor > 1) {
    // Layers of experts alone know how experts are spread.
    Layout whole = layout;
    whole.expert = whole.expert_tensor = 1;
    cut = Cut(whole);
  } else {
    if (model.num_dense_layers() > 0) {
      add(WorkOfLayer(model, layout, LayerKind::kDense, implementation),
          &cut.dense, &cut.dense_held);
      cut.dense_parameters =
          ParametersOfLayer(model, layout, LayerKind::kDense);
    }
    add(WorkOfEmbedding(model, layout, implementation), &cut.embedding,
        &cut.embedding_held);
    add(WorkOfHead(model, layout, implementation), &cut.head, &cut.head_held);
    cut.embedding_parameters = ParametersOfEmbedding(model, layout);
    cut.head_parameters = ParametersOfHead(model, layout);
  }
  if (model.num_expert_layers() > 0) {
    add(WorkOfLayer(model, layout, LayerKind::kExperts, implementation),
        &cut.experts, &cut.experts_held);
    cut.experts_parameters =
        ParametersOfLayer(model, layout, LayerKind::kExperts);
  }
  recent_cuts[recent] = &*cuts.emplace(key, cut).first;
  return recent_cuts[recent]->second;
}

const std::vector<StageKind>& StepModel::State::Stages(const Layout& layout) {
  const uint64_t key = static_cast<uint64_t>(layout.pipeline) << 32 |
                       static_cast<uint32_t>(layout.interleave);
  const auto found = stages.find(key);
  if (found != stages.end()) return found->second;
  std::vector<StageKind> all(static_cast<size_t>(layout.pipeline));
  const std::vector<LayerRange> chunks =
      ChunkLayers(model, layout, implementation);
  for (size_t c = 0; c < chunks.size(); ++c) {
    StageKind& stage = all[c % all.size()];
    for (int64_t layer = chunks[c].begin; layer < chunks[c].end; ++layer) {
      ++(KindOfLayer(model, layer) == LayerKind::kDense ? stage.num_dense
                                                        : stage.num_experts);
    }
  }
  all.front().has_embedding = true;
  all.back().has_head = true;
  std::vector<StageKind> kinds;
  for (size_t i = 0; i < all.size(); ++i) {
    all[i].first = static_cast<int32_t>(i);
    if (std::none_of(kinds.begin(), kinds.end(), [&](const StageKind& kind) {
          return kind.is_like(all[i]);
        })) {
      kinds.push_back(all[i]);
    }
  }
  return stages.emplace(key, std::move(kinds)).first->second;
}

double StepModel::State::HopSeconds(const Layout& layout) const {
  if (layout.pipeline == 1) return 0;
  constexpr double kActivationBytes = 2;
  const double bytes = kActivationBytes * layout.micro_batch *
                       static_cast<double>(model.sequence_length) /
                       layout.context * static_cast<double>(model.hidden);
  double seconds = cost.TransferSeconds(bytes / layout.tensor,
                                        PipelineStride(layout, implementation),
                                        layout.pipeline);
  // Posting both ends, waiting for them and what Python does about it.
  constexpr double kHostLaunches = 6;
  if (implementation.launches_from_host) {
    seconds += kHostLaunches * cost.constants().host_launch_s;
  }
  if (!implementation.sequence_parallel) {
    seconds += cost.CollectiveSeconds(CommKind::kAllGather, bytes,
                                      TensorGroup(layout));
  }
  return seconds;
}

namespace {

LayerTime TimeOfStage(const CutTimes& cut, const StageKind& stage) {
  LayerTime time = static_cast<double>(stage.num_dense) * cut.dense;
  if (stage.num_experts > 0) {
    time += static_cast<double>(stage.num_experts) * cut.experts;
  }
  if (stage.has_embedding) time += cut.embedding;
  if (stage.has_head) time += cut.head;
  return time;
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

RankParameters ParametersOfStage(const CutTimes& cut, const StageKind& stage) {
  const auto num_dense = static_cast<double>(stage.num_dense);
  const auto num_experts = static_cast<double>(stage.num_experts);
  RankParameters sum{.dense = num_dense * cut.dense_parameters.dense +
                              num_experts * cut.experts_parameters.dense,
                     .experts = num_experts * cut.experts_parameters.experts};
  if (stage.has_embedding) sum.dense += cut.embedding_parameters.dense;
  if (stage.has_head) sum.dense += cut.head_parameters.dense;
  return sum;
}

HeldBytes HeldByStage(const CutTimes& cut, const StageKind& stage) {
  HeldBytes sum;
  auto add = [&](int64_t count, const HeldBytes& held) {
    sum.activations += count * held.activations;
    sum.weight_gradients += count * held.weight_gradients;
    if (count > 0) sum.working = std::max(sum.working, held.working);
  };
  add(stage.num_dense, cut.dense_held);
  add(stage.num_experts, cut.experts_held);
  add(stage.has_embedding ? 1 : 0, cut.embedding_held);
  add(stage.has_head ? 1 : 0, cut.head_held);
  return sum;
}

// The data axis's traffic of a rank: whole reductions and gathers, alone.
struct ReplicaTraffic {
  double reduce = 0;
  double gather = 0;
  double buckets = 1;  // Of each.
};

ReplicaTraffic TrafficOf(const Layout& layout,
                         const Implementation& implementation,
                         const DeviceCost& cost,
                         const RankParameters& parameters,
                         const StageKind& stage) {
  ReplicaTraffic traffic;
  // About one bucket a layer, and smaller ones of large layers, as frameworks
  // cut them.
  constexpr double kBucketElements = 40e6;
  traffic.buckets =
      std::max(static_cast<double>(stage.num_dense + stage.num_experts),
               (parameters.dense + parameters.experts) /
                   std::max(kBucketElements, 1e6 * layout.data));
  constexpr double kWeightBytes = 2;
  auto add = [&](double elements, const GroupPlacement& group) {
    if (elements <= 0 || group.size() <= 1) return;
    auto seconds = [&](CommKind kind, double bytes) {
      return traffic.buckets *
             cost.CollectiveSeconds(kind, bytes * elements / traffic.buckets,
                                    group);
    };
    const double gradient_bytes = implementation.gradient_bytes;
    if (layout.zero == 0) {
      traffic.reduce += seconds(CommKind::kAllReduce, gradient_bytes);
      return;
    }
    traffic.reduce += seconds(CommKind::kReduceScatter, gradient_bytes);
    traffic.gather += seconds(CommKind::kAllGather, kWeightBytes);
  };
  add(parameters.dense, ReplicaGroup(layout, implementation));
  add(parameters.experts, ExpertReplicaGroup(layout, implementation));
  return traffic;
}

double OptimizerSeconds(const Layout& layout,
                        const Implementation& implementation,
                        const DeviceCost& cost,
                        const RankParameters& parameters) {
  const double replicas = static_cast<double>(layout.data) * layout.context;
  const bool shards = layout.zero >= 1;
  const double owned =
      parameters.dense / (shards ? replicas : 1) +
      parameters.experts / (shards ? NumExpertReplicas(layout) : 1);
  const double held =
      layout.zero >= 2 ? owned : parameters.dense + parameters.experts;
  // AdamW reads the gradient and reads and writes master weight and both
  // moments, all fp32, and writes the weight; its norm is read before, and
  // gradients are zeroed after.
  constexpr double kStateBytes = 3 * 8 + 2;
  return cost.MemorySeconds(
      owned * (kStateBytes + 2 * implementation.gradient_bytes) +
      held * implementation.gradient_bytes);
}

StageLoad LoadOfStage(const CutTimes& cut, const StageKind& stage,
                      double stream_bytes) {
  auto load_of = [](const RankParameters& parameters, const HeldBytes& held) {
    return LayerLoad{.parameters = parameters,
                     .activation_bytes = held.activations,
                     .working_bytes = held.working};
  };
  StageLoad load{.stream_bytes = stream_bytes};
  AddLayers(load_of(cut.dense_parameters, cut.dense_held), stage.num_dense,
            &load);
  AddLayers(load_of(cut.experts_parameters, cut.experts_held),
            stage.num_experts, &load);
  if (stage.has_embedding) {
    AddEnd(load_of(cut.embedding_parameters, cut.embedding_held), &load);
  }
  if (stage.has_head) {
    AddEnd(load_of(cut.head_parameters, cut.head_held), &load);
  }
  return load;
}

// Seconds that `comm`, in so many buckets, sticks out of `window` seconds of
// computing; `slowdown` grows by what it costs the computing it hides under.
double Exposed(double comm, double buckets, double window,
               const DeviceCost& cost, double* slowdown) {
  if (comm <= 0) return 0;
  const OverlapFactors& overlap = cost.profile().overlap;
  const double hidden = std::min(
      comm * std::min(cost.constants().data_hidden_share, 1 - 1 / buckets),
      window / overlap.communication);
  *slowdown += (overlap.compute - 1) * hidden * overlap.communication;
  return comm - hidden;
}

}  // namespace

StepModel::StepModel(std::unique_ptr<State> state) : state_(std::move(state)) {}
StepModel::StepModel(StepModel&&) noexcept = default;
StepModel& StepModel::operator=(StepModel&&) noexcept = default;
StepModel::~StepModel() = default;

absl::StatusOr<StepModel> StepModel::Create(
    const ModelSpec& model, const HardwareProfile& profile,
    const Implementation& implementation) {
  RETURN_IF_ERROR(ValidateModel(model));
  ASSIGN_OR_RETURN(DeviceCost cost, DeviceCost::Create(profile));
  return StepModel(
      std::make_unique<State>(model, implementation, std::move(cost)));
}

StepTime StepModel::PredictPasses(const Layout& layout) {
  const CutTimes& cut = state_->Cut(layout);
  const LayerTime pass =
      TimeOfStage(cut, SlowestStage(cut, state_->Stages(layout)));
  const StageKind whole{.num_dense = state_->model.num_dense_layers(),
                        .num_experts = state_->model.num_expert_layers(),
                        .has_embedding = true,
                        .has_head = true};
  const double all_stages = TimeOfStage(cut, whole).total();

  const double microbatches = layout.num_microbatches;
  const double stages = layout.pipeline;
  const double chunks = layout.interleave;
  StepTime time;
  time.compute_s =
      microbatches * (pass.forward.compute + pass.input_gradient.compute +
                      pass.weight_gradient);
  time.recompute_s = microbatches * pass.recompute.compute;
  auto exposed = [&](double PassTime::*part) {
    return microbatches * (pass.forward.*part + pass.recompute.*part +
                           pass.input_gradient.*part);
  };
  time.exposed_tensor_s = exposed(&PassTime::tensor);
  time.exposed_context_s = exposed(&PassTime::context);
  time.exposed_expert_s = exposed(&PassTime::expert);
  if (layout.pipeline > 1) {
    const double hop = state_->HopSeconds(layout);
    // Up and down the pipeline once; and each micro-batch of each chunk.
    time.transfer_s = 2 * (stages - 1) * hop;
    if (!state_->implementation.overlaps_transfers) {
      time.transfer_s += 2 * microbatches * chunks * hop;
    }
    // A micro-batch comes back to a stage for its next chunk when all stages
    // had it: fewer micro-batches than stages leave them waiting in between.
    time.bubble_s =
        std::max((all_stages - pass.total()) / chunks,
                 all_stages - pass.total() *
                                  (microbatches - (microbatches - 1) / chunks));
    if (layout.schedule == Schedule::kZeroBubble) {
      // No stage waits for the weight gradients of another: of the stages after
      // it when the first gradients come, and, put off, at the end once more.
      const double put_off =
          stages - 1 + std::max(0.0, std::min(stages, microbatches) - 2);
      time.bubble_s =
          std::max(0.0, time.bubble_s - put_off * pass.weight_gradient);
    }
  }
  return time;
}

StepPrediction StepModel::Predict(const Layout& layout) {
  const Implementation& how = state_->implementation;
  const DeviceCost& cost = state_->cost;
  const CutTimes& cut = state_->Cut(layout);
  const std::vector<StageKind>& kinds = state_->Stages(layout);

  const StageKind& slowest = SlowestStage(cut, kinds);
  const LayerTime pass = TimeOfStage(cut, slowest);
  const double microbatches = layout.num_microbatches;
  const double stages = layout.pipeline;
  const double chunks = layout.interleave;
  StepPrediction prediction{.time = PredictPasses(layout)};
  StepTime& time = prediction.time;
  const RankParameters parameters = ParametersOfStage(cut, slowest);
  const ReplicaTraffic traffic =
      TrafficOf(layout, how, cost, parameters, slowest);

  // Parameters gathered and gradients reduced in every pass. PyTorch's
  // fully_shard keeps parameters whole and adds gradients up in a pipeline.
  double slowdown = 0;
  const double forward = pass.forward.total();
  const double backward = pass.backward();
  const bool in_passes = !(how.slices_are_masters && layout.pipeline > 1);
  const bool gathers_often = in_passes && layout.shards_parameters();
  const bool reduces_often = in_passes && layout.shards_gradients();
  if (reduces_often) {
    const double before_backward = gathers_often ? traffic.gather : 0;
    double exposed = before_backward + before_backward + traffic.reduce;
    if (how.overlaps_data) {
      exposed =
          Exposed(before_backward, traffic.buckets, forward, cost, &slowdown) +
          Exposed(before_backward + traffic.reduce, traffic.buckets, backward,
                  cost, &slowdown);
    }
    time.exposed_data_s = microbatches * exposed;
    slowdown *= microbatches;
  }
  // Once a step: under the passes of the last micro-batches, each chunk's when
  // the others still compute (and of the first, for parameters).
  const bool reduces_once = !reduces_often;
  const bool gathers_once = layout.zero >= 1 && !gathers_often;
  if (how.overlaps_data) {
    const double passes =
        (std::min(stages, microbatches) * (chunks - 1) + 1) / chunks;
    if (reduces_once) {
      time.exposed_data_s += Exposed(traffic.reduce, traffic.buckets,
                                     passes * backward, cost, &slowdown);
    }
    if (gathers_once) {
      time.exposed_data_s += Exposed(traffic.gather, traffic.buckets,
                                     passes * forward, cost, &slowdown);
    }
  } else {
    time.exposed_data_s += (reduces_once ? traffic.reduce : 0) +
                           (gathers_once ? traffic.gather : 0);
  }

  time.compute_s += slowdown;
  time.optimizer_s =
      OptimizerSeconds(layout, how, cost, parameters) + cost.constants().step_s;
  prediction.memory = PredictMemory(layout);
  return prediction;
}

StepMemory StepModel::PredictMemory(const Layout& layout) {
  const CutTimes& cut = state_->Cut(layout);
  const double stream_bytes =
      StreamBytes(state_->model, layout, state_->implementation);
  StepMemory most;
  for (const StageKind& kind : state_->Stages(layout)) {
    const StepMemory memory = MemoryOfStage(
        layout, state_->implementation, state_->cost.profile().memory_overhead,
        LoadOfStage(cut, kind, stream_bytes), kind.first);
    if (memory.total() > most.total()) most = memory;
  }
  return most;
}

PipelineCosts StepModel::PassCosts(const Layout& layout) {
  const CutTimes& cut = state_->Cut(layout);
  const ModelSpec& model = state_->model;
  const Implementation& how = state_->implementation;
  PipelineCosts costs{.num_stages = layout.pipeline,
                      .num_microbatches = layout.num_microbatches,
                      .transfer_s = state_->HopSeconds(layout)};
  const std::vector<LayerRange> chunks = ChunkLayers(model, layout, how);
  for (size_t c = 0; c < chunks.size(); ++c) {
    StageKind chunk{.has_embedding = c == 0,
                    .has_head = c + 1 == chunks.size()};
    for (int64_t layer = chunks[c].begin; layer < chunks[c].end; ++layer) {
      ++(KindOfLayer(model, layer) == LayerKind::kDense ? chunk.num_dense
                                                        : chunk.num_experts);
    }
    const LayerTime time = TimeOfStage(cut, chunk);
    const HeldBytes held = HeldByStage(cut, chunk);
    costs.stage_of_chunk.push_back(
        static_cast<int32_t>(c % static_cast<size_t>(layout.pipeline)));
    costs.chunks.push_back({.forward_s = time.forward.total(),
                            .input_gradient_s = time.recompute.total() +
                                                time.input_gradient.total(),
                            .weight_gradient_s = time.weight_gradient,
                            .activation_bytes = held.activations,
                            .weight_gradient_bytes = held.weight_gradients});
  }
  return costs;
}

StepModel::StepEnds StepModel::EndsOf(const Layout& layout) {
  const CutTimes& cut = state_->Cut(layout);
  const StageKind& slowest = SlowestStage(cut, state_->Stages(layout));
  const RankParameters parameters = ParametersOfStage(cut, slowest);
  const ReplicaTraffic traffic = TrafficOf(layout, state_->implementation,
                                           state_->cost, parameters, slowest);
  return {.gradient_reduction_s = traffic.reduce,
          .parameter_gather_s = traffic.gather,
          .optimizer_s = OptimizerSeconds(layout, state_->implementation,
                                          state_->cost, parameters)};
}

}  // namespace millrace
