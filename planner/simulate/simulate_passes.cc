#include "planner/simulate/simulate_passes.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "planner/pipeline/pass_order.h"
#include "planner/profile/seeded_noise.h"
#include "planner/simulate/pass_disturbance.h"
#include "planner/simulate/pass_ops.h"
#include "planner/simulate/run_pass_ops.h"
#include "planner/simulate/slowdown_causes.h"

namespace millrace {
namespace {

constexpr uint64_t kStepStream = 0x73746570u;

absl::Status CheckOptions(const PassOptions& options) {
  const auto refuse = [](const auto&... what) {
    return absl::InvalidArgumentError(absl::StrCat(what...));
  };
  if (!(options.overlap.compute >= 1) ||
      !(options.overlap.communication >= 1)) {
    return refuse("overlap factors are at least 1, found ",
                  options.overlap.compute, " and ",
                  options.overlap.communication);
  }
  if (!(options.noise_sigma >= 0) || options.noise_sigma > 2) {
    return refuse("noise_sigma is from 0 to 2, found ", options.noise_sigma);
  }
  if (!(options.step_sigma >= 0) || options.step_sigma > 2) {
    return refuse("step_sigma is from 0 to 2, found ", options.step_sigma);
  }
  if (!(options.straggler_share >= 0) || options.straggler_share > 1) {
    return refuse("straggler_share is from 0 to 1, found ",
                  options.straggler_share);
  }
  if (!(options.straggler_factor >= 1)) {
    return refuse("straggler_factor is at least 1, found ",
                  options.straggler_factor);
  }
  if (options.ranks_per_machine < 1 || options.num_steps < 1) {
    return refuse("at least one rank a machine and one step, found ",
                  options.ranks_per_machine, " and ", options.num_steps);
  }
  for (const double factor : options.machine_slowdown) {
    if (!(factor > 0)) {
      return refuse("machine_slowdown is above 0, found ", factor);
    }
  }
  return absl::OkStatus();
}

// Gives the passes the times that `time` has for the slowest stage, and the
// data axis's traffic that each micro-batch causes.
void AddTrafficOfPasses(const StepTime& time, PipelineCosts& costs) {
  std::vector<double> seconds(costs.num_stages, 0);
  for (size_t i = 0; i < costs.chunks.size(); ++i) {
    const ChunkCosts& chunk = costs.chunks[i];
    seconds[costs.stage_of_chunk[i]] +=
        chunk.forward_s + chunk.input_gradient_s + chunk.weight_gradient_s;
  }
  const double with_traffic =
      (time.compute_s + time.recompute_s + time.exposed_tensor_s +
       time.exposed_context_s + time.exposed_expert_s + time.exposed_data_s) /
      costs.num_microbatches;
  const double traffic =
      with_traffic - *std::max_element(seconds.begin(), seconds.end());
  const auto chunks_of_stage =
      static_cast<double>(costs.chunks.size()) / costs.num_stages;
  for (ChunkCosts& chunk : costs.chunks) {
    chunk.input_gradient_s += std::max(0.0, traffic) / chunks_of_stage;
  }
}

// Fractions of the mean stage's step.
void FillFractions(const PassOps& ops, const OpTimes& times, int32_t num_stages,
                   PassSimulation* simulation) {
  double compute_s = 0, exposed_s = 0;
  std::vector<double> computed_until(num_stages, 0);
  double passes_end_s = 0;
  for (size_t i = 0; i < ops.ops.size(); ++i) {
    if (ops.ops[i].is_pass()) {
      passes_end_s = std::max(passes_end_s, times.end_s[i]);
    }
  }
  for (size_t i = 0; i < ops.ops.size(); ++i) {
    const PassOp& op = ops.ops[i];
    const bool is_optimizer = op.kind == PassEventKind::kOptimizer;
    if (!op.is_pass() && !is_optimizer) continue;
    double& until = computed_until[ops.step.ops[i].stage];
    compute_s += times.end_s[i] - times.start_s[i];
    // The time at which a pass would have started without its gathers.
    double others_s = until;
    double gathers_s = 0;
    for (const int32_t wait : ops.step.WaitsOf(i)) {
      const bool is_gather =
          ops.ops[wait].kind == PassEventKind::kParameterGather;
      double& latest = is_gather ? gathers_s : others_s;
      if (!is_optimizer) latest = std::max(latest, times.end_s[wait]);
    }
    // Nothing but reductions holds the optimizer once all passes are done.
    if (is_optimizer) {
      exposed_s += times.start_s[i] - std::max(until, passes_end_s);
    } else {
      exposed_s += std::max(0.0, gathers_s - others_s);
    }
    until = times.end_s[i];
  }
  const double all_s = times.step_time_s * num_stages;
  if (all_s <= 0) return;
  simulation->compute_fraction = compute_s / all_s;
  simulation->exposed_data_fraction = exposed_s / all_s;
  // Sums may be a rounding above the whole.
  simulation->bubble_fraction =
      std::max(0.0, 1 - (compute_s + exposed_s) / all_s);
}

// One class a stage.
void AddClasses(const PassOps& ops, const OpTimes& times, int32_t replica,
                int64_t num_ranks, int32_t num_stages, PassTimeline* timeline) {
  std::vector<RankClass> classes(num_stages);
  for (int32_t stage = 0; stage < num_stages; ++stage) {
    classes[stage].stage = stage;
    classes[stage].replica = replica;
    classes[stage].num_ranks = num_ranks;
  }
  for (size_t i = 0; i < ops.ops.size(); ++i) {
    const PassOp& op = ops.ops[i];
    const StepOp& where = ops.step.ops[i];
    classes[where.stage].events.push_back({.kind = op.kind,
                                           .lane = where.lane,
                                           .chunk_idx = op.chunk_idx,
                                           .microbatch_idx = op.microbatch_idx,
                                           .bucket_idx = op.bucket_idx,
                                           .start_s = times.start_s[i],
                                           .end_s = times.end_s[i]});
  }
  std::move(classes.begin(), classes.end(),
            std::back_inserter(timeline->classes));
}

void KeepDisturbedTimeline(const PassStep& step, const PassOps& ops,
                           const ReplicaRun& replicas,
                           const Disturbance& disturbance,
                           const ReplicaTimes& times, PassTimeline* timeline) {
  timeline->step_time_s = times.step_time_s;
  std::vector<int32_t> by_end(step.num_replicas);
  std::iota(by_end.begin(), by_end.end(), 0);
  std::stable_sort(by_end.begin(), by_end.end(), [&](int32_t a, int32_t b) {
    return times.passes_end_s[a] < times.passes_end_s[b];
  });
  const int32_t slowest = by_end.back();
  const int32_t num_stages = step.costs.num_stages;
  AddClasses(ops, replicas.TimesOf(slowest, disturbance, times), slowest,
             step.ranks_per_pass, num_stages, timeline);
  if (step.num_replicas > 1) {
    const int32_t middle = by_end[(by_end.size() - 1) / 2];
    AddClasses(
        ops, replicas.TimesOf(middle, disturbance, times), middle,
        static_cast<int64_t>(step.num_replicas - 1) * step.ranks_per_pass,
        num_stages, timeline);
  }
  std::stable_sort(
      timeline->classes.begin(), timeline->classes.end(),
      [](const RankClass& a, const RankClass& b) { return a.stage < b.stage; });
}

}  // namespace

int32_t BucketsOfChunk(int32_t chunks_of_stage) {
  constexpr int32_t kBucketsOfStage = 8;
  return std::max(1, kBucketsOfStage / chunks_of_stage);
}

absl::StatusOr<PassStep> PassStepOf(const Layout& layout,
                                    const Implementation& implementation,
                                    StepModel& model) {
  const StepTime time = model.Predict(layout).time;
  PassStep step{
      .costs = model.PassCosts(layout),
      .order = {},
      .ends = {model.EndsOf(layout)},
      .data_hidden_share = implementation.overlaps_data
                               ? model.cost().constants().data_hidden_share
                               : 0,
      .overlaps_transfers = implementation.overlaps_transfers,
      .pipeline_outermost = implementation.pipeline_outermost};
  ASSIGN_OR_RETURN(step.order, OrderOf(layout.schedule, step.costs));
  const auto chunks_of_stage =
      static_cast<int32_t>(step.costs.chunks.size()) / step.costs.num_stages;
  step.num_buckets = BucketsOfChunk(chunks_of_stage);
  StepModel::StepEnds& ends = step.ends.front();
  // Includes the part of a step beside its passes.
  ends.optimizer_s = time.optimizer_s;
  if (layout.shards_gradients()) {
    ends.parameter_gather_s = ends.gradient_reduction_s = 0;
    AddTrafficOfPasses(time, step.costs);
  }
  const int32_t ranks_of_replica = layout.tensor * layout.context;
  const int32_t ranks_of_experts = layout.expert * layout.expert_tensor;
  step.ranks_per_pass =
      ranks_of_replica *
      std::max(1, (ranks_of_experts + ranks_of_replica - 1) / ranks_of_replica);
  step.num_replicas =
      std::max(1, layout.num_ranks() / (layout.pipeline * step.ranks_per_pass));
  return step;
}

absl::StatusOr<PassSimulation> SimulatePasses(const PassStep& step,
                                              const PassOptions& options) {
  RETURN_IF_ERROR(CheckOptions(options));
  ASSIGN_OR_RETURN(const PassOps ops, PassOpsOf(step));
  const OpTimes alone = RunPassOps(ops.step, options.overlap);
  const int32_t num_stages = step.costs.num_stages;
  PassSimulation simulation{.step_time_s = alone.step_time_s,
                            .undisturbed_step_time_s = alone.step_time_s};
  FillFractions(ops, alone, num_stages, &simulation);
  const LogNormalFactors step_noise(options.step_sigma);
  const auto step_factor = [&](int32_t i) {
    return options.step_sigma > 0
               ? step_noise.At(RandomUniform(options.seed ^ kStepStream, i))
               : 1;
  };
  const auto fill_mean = [&] {
    simulation.step_time_s =
        std::accumulate(simulation.step_times_s.begin(),
                        simulation.step_times_s.end(), 0.0) /
        options.num_steps;
  };
  if (!options.replicas_differ()) {
    for (int32_t i = 0; i < options.num_steps; ++i) {
      simulation.step_times_s.push_back(alone.step_time_s * step_factor(i));
    }
    if (options.step_sigma > 0) fill_mean();
    if (options.keeps_timeline) {
      simulation.timeline.step_time_s = alone.step_time_s;
      AddClasses(ops, alone, 0,
                 static_cast<int64_t>(step.num_replicas) * step.ranks_per_pass,
                 num_stages, &simulation.timeline);
    }
    return simulation;
  }

  ASSIGN_OR_RETURN(Disturbance disturbance,
                   DisturbanceOf(step, options, &simulation.num_slow_machines));
  const ReplicaRun replicas(ops, alone, num_stages, step.num_replicas);
  CauseFinder causes(ops, replicas);
  for (int32_t i = 0; i < options.num_steps; ++i) {
    disturbance.seed = RandomBits(options.seed, i);
    const ReplicaTimes times = replicas.Run(disturbance);
    simulation.step_times_s.push_back(times.step_time_s * step_factor(i));
    if (options.finds_causes) causes.AddStep(disturbance, times);
    if (i == 0 && options.keeps_timeline) {
      KeepDisturbedTimeline(step, ops, replicas, disturbance, times,
                            &simulation.timeline);
    }
  }
  simulation.causes = causes.Causes();
  fill_mean();
  return simulation;
}

}  // namespace millrace
