#include "planner/cost/closed_form.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "planner/cost/closed_form_state.h"
#include "planner/cost/host_sharing.h"

namespace millrace {

const StageList& StepModel::State::Stages(const Layout& layout) {
  const uint64_t key = static_cast<uint64_t>(layout.pipeline) << 32 |
                       static_cast<uint32_t>(layout.interleave);
  if (last_stages != nullptr && key == last_key) return *last_stages;
  auto found = stages.find(key);
  if (found == stages.end()) {
    found = stages.emplace(key, StagesOf(model, layout, implementation)).first;
  }
  last_key = key;
  last_stages = &found->second;
  return *last_stages;
}

const StepPasses& StepModel::State::PassesOf(const Layout& layout) {
  Layout key = layout;
  key.zero = 0;
  key.data_groups = 1;
  key.gradient_reduction = GradientReduction::kFloat32;
  auto& last = last_passes[static_cast<size_t>(layout.recompute)];
  if (!last.has_value() || !(last->layout == key)) {
    const PipelinePasses passes = MakePasses(layout);
    last = {.layout = std::move(key),
            .pipeline = passes,
            .time = TimeOf(layout, passes)};
  }
  return *last;
}

PipelinePasses StepModel::State::MakePasses(const Layout& layout) {
  const StageList& list = Stages(layout);
  PipelinePasses passes;
  if (layout.recompute_by_stage.empty()) {
    const CutTimes& cut = Times(layout);
    passes.slowest_stage = &SlowestStage(cut, list.kinds);
    passes.slowest = TimeOfStage(cut, *passes.slowest_stage);
    passes.all_stages_s = TimeOfStage(cut, whole).total();
    return passes;
  }
  size_t slowest_stage = 0;
  double most = 0, stage_s = 0;
  for (size_t s = 0; s < list.kind_of_stage.size(); ++s) {
    const auto kind = static_cast<size_t>(list.kind_of_stage[s]);
    const Recompute recompute = layout.recompute_by_stage[s];
    // Stages beside one another are often alike.
    if (s == 0 || list.kind_of_stage[s] != list.kind_of_stage[s - 1] ||
        recompute != layout.recompute_by_stage[s - 1]) {
      stage_s =
          TimeOfStage(cuts.Times(layout, recompute), list.kinds[kind]).total();
    }
    passes.all_stages_s += stage_s;
    if (stage_s <= most) continue;
    most = stage_s;
    slowest_stage = s;
  }
  passes.slowest_stage =
      &list.kinds[static_cast<size_t>(list.kind_of_stage[slowest_stage])];
  passes.slowest =
      TimeOfStage(cuts.Times(layout, layout.recompute_by_stage[slowest_stage]),
                  *passes.slowest_stage);
  return passes;
}

double StepModel::State::HopSeconds(const Layout& layout) const {
  if (layout.pipeline == 1) return 0;
  const auto element_bytes =
      static_cast<double>(DTypeBytes(ActivationType(layout.precision)));
  const double bytes = element_bytes * layout.micro_batch *
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
    seconds +=
        cost.CollectiveSeconds(OpKind::kAllGather, bytes, TensorGroup(layout));
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
  ASSIGN_OR_RETURN(CostModel cost, CostModel::Create(profile));
  return Create(model, std::move(cost), implementation);
}

absl::StatusOr<StepModel> StepModel::Create(
    const ModelSpec& model, CostModel cost,
    const Implementation& implementation) {
  RETURN_IF_ERROR(ValidateModel(model));
  return StepModel(
      std::make_unique<State>(model, implementation, std::move(cost), nullptr));
}

StepModel StepModel::WithPipelineOutermost() const {
  Implementation outermost = state_->implementation;
  outermost.pipeline_outermost = true;
  return StepModel(std::make_unique<State>(state_->model, outermost,
                                           state_->cost, &state_->cuts));
}

const CostModel& StepModel::cost() const { return state_->cost; }

absl::Status StepModel::CheckPrices(const Layout& layout) const {
  const CostModel& cost = state_->cost;
  return cost.HasSheet() ? absl::OkStatus() : cost.CheckTablesPrice(layout);
}

StepTime StepModel::PredictPasses(const Layout& layout) {
  return state_->PassesOf(layout).time;
}

StepTime StepModel::State::TimeOf(const Layout& layout,
                                  const PipelinePasses& passes) const {
  const LayerTime& pass = passes.slowest;
  const double all_stages = passes.all_stages_s;
  const double microbatches = layout.most_microbatches();
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
    const double hop = HopSeconds(layout);
    // Up and down the pipeline once; and each micro-batch of each chunk.
    time.transfer_s = 2 * (stages - 1) * hop;
    if (!implementation.overlaps_transfers) {
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
  const CostModel& cost = state_->cost;
  const auto& [known_layout, passes, passes_time] = state_->PassesOf(layout);
  const LayerTime& pass = passes.slowest;
  const double microbatches = layout.most_microbatches();
  const double stages = layout.pipeline;
  const double chunks = layout.interleave;
  StepPrediction prediction{.time = passes_time};
  StepTime& time = prediction.time;
  const RankParameters parameters =
      LoadOfStage(state_->Loads(layout), *passes.slowest_stage, 0).parameters;
  const ReplicaTraffic traffic =
      TrafficOf(state_->model, layout, how, cost, state_->Loads(layout),
                *passes.slowest_stage);

  // Parameters gathered and gradients reduced in every pass. PyTorch's
  // fully_shard keeps parameters whole and adds gradients up in a pipeline.
  const OverlapFactors overlap =
      OverlapOf(NumComputing(layout, cost.profile()), cost.profile());
  double slowdown = 0;
  const auto exposed_of = [&](double comm, double buckets, double window) {
    return ExposedSeconds(comm, buckets, window,
                          cost.constants().data_hidden_share, overlap,
                          &slowdown);
  };
  const double forward = pass.forward.total();
  const double backward = pass.backward();
  const bool in_passes = !(how.slices_are_masters && layout.pipeline > 1);
  const bool gathers_often = in_passes && layout.shards_parameters();
  const bool reduces_often = in_passes && layout.shards_gradients();
  if (reduces_often) {
    const double before_backward = gathers_often ? traffic.gather : 0;
    double exposed = before_backward + before_backward + traffic.reduce;
    double across = 0;
    if (how.overlaps_data) {
      exposed = exposed_of(before_backward, traffic.buckets, forward) +
                exposed_of(before_backward + traffic.reduce, traffic.buckets,
                           backward);
    }
    // Under the last micro-batch's backward pass, behind its reductions.
    if (traffic.across > 0) {
      across = traffic.across;
      if (how.overlaps_data) {
        across = exposed_of(
            traffic.across, traffic.buckets,
            std::max(0.0, backward - before_backward - traffic.reduce));
      }
    }
    double further = exposed;
    double slowdown_of_further = slowdown;
    if (!cost.HasSheet() && how.overlaps_data) {
      // Workers go on with the next micro-batch meanwhile, so that only what
      // the last one leaves sticks out of its passes.
      constexpr double kManyBuckets = 1e9;
      const double slowdown_of_last = slowdown;
      further = exposed_of(2 * before_backward + traffic.reduce, kManyBuckets,
                           forward + backward);
      slowdown_of_further = slowdown - slowdown_of_last;
      slowdown = slowdown_of_last;
    }
    time.exposed_data_s = exposed + across + (microbatches - 1) * further;
    slowdown += (microbatches - 1) * slowdown_of_further;
  }
  // Once a step: under the passes of the last micro-batches, each chunk's when
  // the others still compute (and of the first, for parameters).
  const bool reduces_once = !reduces_often;
  const bool gathers_once = layout.zero >= 1 && !gathers_often;
  if (how.overlaps_data) {
    const double hiding =
        (std::min(stages, microbatches) * (chunks - 1) + 1) / chunks;
    if (reduces_once) {
      time.exposed_data_s += exposed_of(traffic.reduce + traffic.across,
                                        traffic.buckets, hiding * backward);
    }
    if (gathers_once) {
      time.exposed_data_s +=
          exposed_of(traffic.gather, traffic.buckets, hiding * forward);
    }
  } else {
    time.exposed_data_s +=
        (reduces_once ? traffic.reduce + traffic.across : 0) +
        (gathers_once ? traffic.gather : 0);
  }

  time.compute_s += slowdown;
  time.optimizer_s =
      OptimizerSeconds(layout, how, cost, parameters) + cost.constants().step_s;
  prediction.memory = PredictMemory(layout);
  return prediction;
}

double StepModel::PassesFloor(const Layout& layout) {
  const StepPasses& passes = state_->PassesOf(layout);
  if (layout.schedule != Schedule::kZeroBubble) {
    return passes.time.step_time_s();
  }
  const PipelinePasses& least = passes.pipeline;
  // Which stage is the slowest decides what is put off.
  PipelinePasses floor = least;
  const CutTimes& cut = state_->Times(layout);
  for (const StageKind& kind : state_->Stages(layout).kinds) {
    floor.slowest.weight_gradient = std::max(
        floor.slowest.weight_gradient, TimeOfStage(cut, kind).weight_gradient);
  }
  const double more =
      floor.slowest.weight_gradient - least.slowest.weight_gradient;
  // The same pass, of which more may be put off.
  floor.slowest.input_gradient.compute -= more;
  return state_->TimeOf(layout, floor).step_time_s();
}

std::vector<RecomputeCandidate> StepModel::PriceRecompute(
    const Layout& layout) const {
  return state_->cuts.PriceRecompute(layout);
}

const std::vector<Recompute>& StepModel::Recomputes(const Layout& layout) {
  return state_->cuts.Recomputes(layout);
}

PipelineCosts StepModel::PassCosts(const Layout& layout) {
  const ModelSpec& model = state_->model;
  const Implementation& how = state_->implementation;
  PipelineCosts costs{.num_stages = layout.pipeline,
                      .num_microbatches = layout.most_microbatches(),
                      .transfer_s = state_->HopSeconds(layout)};
  const std::vector<LayerRange> chunks = ChunkLayers(model, layout, how);
  for (size_t c = 0; c < chunks.size(); ++c) {
    StageKind chunk{.layers = {},
                    .has_embedding = c == 0,
                    .has_head = c + 1 == chunks.size()};
    for (int64_t layer = chunks[c].begin; layer < chunks[c].end; ++layer) {
      chunk.layers.Count(KindOfLayer(model, layer));
    }
    const auto stage =
        static_cast<int32_t>(c % static_cast<size_t>(layout.pipeline));
    const Recompute recompute = layout.recompute_of(stage);
    const LayerTime time =
        TimeOfStage(state_->cuts.Times(layout, recompute), chunk);
    const StageLoad load =
        LoadOfStage(state_->cuts.Loads(layout, recompute), chunk, 0);
    costs.stage_of_chunk.push_back(stage);
    costs.chunks.push_back(
        {.forward_s = time.forward.total(),
         .input_gradient_s =
             time.recompute.total() + time.input_gradient.total(),
         .weight_gradient_s = time.weight_gradient,
         .activation_bytes = load.activation_bytes,
         .weight_gradient_bytes = load.weight_gradient_bytes});
  }
  return costs;
}

StepModel::StepEnds StepModel::EndsOf(const Layout& layout) {
  const StageKind& slowest = *state_->PassesOf(layout).pipeline.slowest_stage;
  const RankParameters parameters =
      LoadOfStage(state_->Loads(layout), slowest, 0).parameters;
  const ReplicaTraffic traffic =
      TrafficOf(state_->model, layout, state_->implementation, state_->cost,
                state_->Loads(layout), slowest);
  return {.gradient_reduction_s = traffic.reduce + traffic.across,
          .parameter_gather_s = traffic.gather,
          .optimizer_s = OptimizerSeconds(layout, state_->implementation,
                                          state_->cost, parameters)};
}

}  // namespace millrace
