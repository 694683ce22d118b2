#include "planner/step_model.h"

#include <algorithm>
#include <array>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "planner/device_cost.h"
#include "planner/layer_time.h"
#include "planner/stage_time.h"

namespace millrace {
namespace {

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
      exposed = ExposedSeconds(before_backward, traffic.buckets, forward, cost,
                               &slowdown) +
                ExposedSeconds(before_backward + traffic.reduce,
                               traffic.buckets, backward, cost, &slowdown);
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
      time.exposed_data_s += ExposedSeconds(traffic.reduce, traffic.buckets,
                                            passes * backward, cost, &slowdown);
    }
    if (gathers_once) {
      time.exposed_data_s += ExposedSeconds(traffic.gather, traffic.buckets,
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

std::vector<StepMemory> StepModel::MemoryByStage(const Layout& layout) {
  const ModelSpec& model = state_->model;
  const Implementation& how = state_->implementation;
  const CutTimes& cut = state_->Cut(layout);
  std::vector<StageKind> stages(static_cast<size_t>(layout.pipeline));
  const std::vector<LayerRange> chunks = ChunkLayers(model, layout, how);
  for (size_t c = 0; c < chunks.size(); ++c) {
    StageKind& stage = stages[c % stages.size()];
    for (int64_t layer = chunks[c].begin; layer < chunks[c].end; ++layer) {
      ++(KindOfLayer(model, layer) == LayerKind::kDense ? stage.num_dense
                                                        : stage.num_experts);
    }
  }
  stages.front().has_embedding = true;
  stages.back().has_head = true;
  const double stream_bytes = StreamBytes(model, layout, how);
  std::vector<StepMemory> memory;
  for (size_t s = 0; s < stages.size(); ++s) {
    memory.push_back(MemoryOfStage(
        layout, how, state_->cost.profile().memory_overhead,
        LoadOfStage(cut, stages[s], stream_bytes), static_cast<int32_t>(s)));
  }
  return memory;
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

StepModel::StageFigures StepModel::PredictStage(const Layout& layout,
                                                const StageKind& stage) {
  const Implementation& how = state_->implementation;
  const DeviceCost& cost = state_->cost;
  const CutTimes& cut = state_->Cut(layout);
  const LayerTime pass = TimeOfStage(cut, stage);
  const HeldBytes held = HeldByStage(cut, stage);
  const RankParameters parameters = ParametersOfStage(cut, stage);
  const ReplicaTraffic traffic =
      TrafficOf(layout, how, cost, parameters, stage);
  double slowdown_s = 0;
  double exposed_s = ExposedSeconds(traffic.reduce, traffic.buckets,
                                    pass.backward(), cost, &slowdown_s);
  if (layout.zero >= 1) {
    exposed_s += ExposedSeconds(traffic.gather, traffic.buckets,
                                pass.forward.total(), cost, &slowdown_s);
  }
  return {
      .pass = {.forward_s = pass.forward.total(),
               .input_gradient_s =
                   pass.recompute.total() + pass.input_gradient.total(),
               .weight_gradient_s = pass.weight_gradient,
               .activation_bytes = held.activations,
               .weight_gradient_bytes = held.weight_gradients},
      .ends = {.gradient_reduction_s = traffic.reduce,
               .parameter_gather_s = traffic.gather,
               .optimizer_s = OptimizerSeconds(layout, how, cost, parameters) +
                              cost.constants().step_s},
      .data_s = exposed_s + slowdown_s,
      .transfer_s = state_->HopSeconds(layout),
      .memory = MemoryOfStage(
          layout, how, cost.profile().memory_overhead,
          LoadOfStage(cut, stage, StreamBytes(state_->model, layout, how)),
          stage.first)};
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
