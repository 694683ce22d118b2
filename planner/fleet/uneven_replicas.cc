#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "base/status_macros.h"
#include "planner/cost/framework_behaviour.h"
#include "planner/fleet/uneven.h"
#include "planner/fleet/uneven_parts.h"
#include "planner/fleet/uneven_split.h"
#include "planner/simulate/simulate_passes.h"

namespace millrace {
namespace {

constexpr double kReplicaNever = std::numeric_limits<double>::infinity();

// What all replicas are like, and how many lie on each type with how many
// micro-batches each.
struct ReplicaCandidate {
  Layout layout;
  std::vector<int64_t> replicas;
  std::vector<int64_t> microbatches;
};

class ReplicaSearch {
 public:
  ReplicaSearch(const UnevenSearch& search, std::vector<PricedPool> pools)
      : search_(search),
        model_(search.job.model),
        pinned_(search.job.layout),
        all_(SpaceOfAll(search)),
        pools_(std::move(pools)),
        best_(search.slowest_s) {}

  absl::StatusOr<UnevenFound> Run() {
    UnevenFound found{.plan = std::nullopt, .floor_s = kReplicaNever};
    // Stages are alike but for their layers, and their order is a known one.
    if (NamesStages(pinned_) || all_.ListsPasses()) return found;
    for (const Layout& sharding : all_.Shardings()) {
      // Experts of several replicas would wait for each other in every layer.
      if (int64_t{sharding.tensor} * sharding.context / sharding.expert_tensor %
              sharding.expert !=
          0) {
        continue;
      }
      for (const int32_t pipeline : all_.Pipelines(sharding)) {
        SearchPipeline(sharding, pipeline);
      }
    }
    ASSIGN_OR_RETURN(found.plan,
                     best_.Fastest([this](const ReplicaCandidate& candidate) {
                       return Simulate(candidate);
                     }));
    if (found.plan.has_value()) {
      found.plan->layouts_considered = num_considered_;
    }
    found.floor_s = floor_s_;
    return found;
  }

 private:
  int64_t NumSequences(const Layout& layout) const {
    return search_.job.training.global_batch / layout.micro_batch;
  }

  void SearchPipeline(const Layout& sharding, int32_t pipeline) {
    const int64_t ranks =
        int64_t{sharding.tensor} * sharding.context * pipeline;
    std::vector<int64_t> replicas;
    for (const PricedPool& pool : pools_) {
      replicas.push_back(std::min(pool.UsableDevices(sharding.tensor) / ranks,
                                  NumSequences(sharding)));
    }
    if (std::count_if(replicas.begin(), replicas.end(),
                      [](int64_t count) { return count > 0; }) < 2) {
      return;
    }
    Layout mesh = sharding;
    mesh.pipeline = pipeline;
    mesh.data = static_cast<int32_t>(
        std::accumulate(replicas.begin(), replicas.end(), int64_t{0}));
    mesh.num_microbatches = 1;
    const std::vector<Recompute> recomputes =
        RecomputesOf(pinned_, pools_.front(), mesh);
    // As if stages never waited and replicas took parts of micro-batches.
    double per_s = 0;
    for (size_t k = 0; k < pools_.size(); ++k) {
      Layout plain = mesh;
      plain.recompute = recomputes.front();
      const StepTime time = pools_[k].model.PredictPasses(plain);
      per_s += static_cast<double>(replicas[k]) /
               (BusySeconds(time) / BestOrderGain(mesh));
    }
    if (static_cast<double>(NumSequences(mesh)) / per_s >= best_.slowest_s()) {
      return;
    }
    for (const Layout& order : OrdersOf(mesh)) {
      for (int32_t zero = 0; zero <= 3; ++zero) {
        if (!Permits(pinned_.zero, zero)) continue;
        for (const Recompute recompute : recomputes) {
          Layout layout = order;
          layout.zero = zero;
          layout.recompute = recompute;
          SearchShares(layout, replicas);
        }
      }
    }
  }

  // Seconds in which the slowest stage is not waiting, for one micro-batch.
  static double BusySeconds(const StepTime& time) {
    return time.step_time_s() - time.bubble_s - time.transfer_s;
  }
  // Chunks may balance the stages better: at best by so much.
  double BestOrderGain(const Layout& mesh) const {
    if (mesh.pipeline == 1) return 1;
    const double even = static_cast<double>(model_.num_layers) / mesh.pipeline;
    return (std::ceil(even) + 1) / even;
  }

  std::vector<Layout> OrdersOf(const Layout& mesh) const {
    // Of a batch that one replica could have, for the rules on orders.
    std::vector<Layout> orders;
    Layout alone = mesh;
    alone.data = 1;
    alone.num_microbatches = static_cast<int32_t>(NumSequences(mesh));
    for (Layout order : all_.Orders(alone)) {
      order.data = mesh.data;
      orders.push_back(order);
    }
    return orders;
  }

  // By type, as lines through what two numbers of micro-batches take: of the
  // step, or of its passes alone, whose time grows no less beyond these numbers
  // and shrinks no more below.
  std::vector<ReplicaSpeed> SpeedsOf(const Layout& layout,
                                     const std::vector<int64_t>& replicas,
                                     bool passes_alone) {
    std::vector<ReplicaSpeed> speeds;
    const int64_t mean =
        std::max<int64_t>(1, NumSequences(layout) / layout.data);
    for (size_t k = 0; k < pools_.size(); ++k) {
      StepModel& model = pools_[k].model;
      const auto seconds = [&](int64_t microbatches) {
        Layout some = layout;
        some.num_microbatches = static_cast<int32_t>(microbatches);
        return passes_alone ? model.PredictPasses(some).step_time_s()
                            : model.Predict(some).time.step_time_s();
      };
      const double at_mean = seconds(mean);
      const double slope = seconds(mean + 1) - at_mean;
      speeds.push_back({.num_replicas = replicas[k],
                        .fixed_s = std::max(
                            0.0, at_mean - static_cast<double>(mean) * slope),
                        .seconds_per_microbatch = slope});
    }
    return speeds;
  }

  void SearchShares(Layout layout, std::vector<int64_t> replicas) {
    ++num_considered_;
    const double floor_s = FloorOf(layout, replicas);
    if (floor_s >= best_.slowest_s()) return;
    if (MayFit(layout)) floor_s_ = std::min(floor_s_, floor_s);
    const std::vector<ReplicaSpeed> speeds =
        SpeedsOf(layout, replicas, /*passes_alone=*/false);
    std::vector<int64_t> microbatches =
        SplitMicrobatches(speeds, NumSequences(layout));
    LeaveOut(speeds, NumSequences(layout), &replicas, &microbatches);
    if (std::count_if(microbatches.begin(), microbatches.end(),
                      [](int64_t count) { return count > 0; }) < 2) {
      return;  // Devices of one type are planned elsewhere.
    }
    layout.data = static_cast<int32_t>(
        std::accumulate(replicas.begin(), replicas.end(), int64_t{0}));
    layout.num_microbatches = static_cast<int32_t>(
        *std::max_element(microbatches.begin(), microbatches.end()));
    if (!Permits(pinned_.data, layout.data) ||
        !Permits(pinned_.devices, layout.num_ranks())) {
      return;
    }
    const ReplicaCandidate candidate{.layout = layout,
                                     .replicas = std::move(replicas),
                                     .microbatches = std::move(microbatches)};
    const std::optional<UnevenPlan> plan = Price(candidate);
    if (plan.has_value()) best_.Add(plan->step_time_s, candidate);
  }

  // Whether each type holds one micro-batch at least: shared over all replicas,
  // it holds no less with fewer.
  bool MayFit(Layout layout) {
    layout.num_microbatches = 1;
    return std::all_of(pools_.begin(), pools_.end(), [&](PricedPool& pool) {
      return pool.model.PredictMemory(layout).total() <= pool.memory_limit;
    });
  }

  // Seconds that no shares of the micro-batches among so many replicas or fewer
  // make the step quicker than, nor more sharding of the optimizer.
  double FloorOf(const Layout& layout, const std::vector<int64_t>& replicas) {
    const std::vector<ReplicaSpeed> speeds =
        SpeedsOf(layout, replicas, /*passes_alone=*/true);
    const std::vector<int64_t> microbatches =
        SplitMicrobatches(speeds, NumSequences(layout));
    double passes_s = 0, optimizer_s = kReplicaNever;
    for (size_t k = 0; k < pools_.size(); ++k) {
      if (replicas[k] == 0) continue;
      optimizer_s =
          std::min(optimizer_s, pools_[k].model.LeastEnds(layout).optimizer_s);
      if (microbatches[k] == 0) continue;
      passes_s = std::max(
          passes_s, speeds[k].fixed_s + static_cast<double>(microbatches[k]) *
                                            speeds[k].seconds_per_microbatch);
    }
    return passes_s + optimizer_s;
  }

  // Replicas that the others' last micro-batches leave nothing to do, of the
  // slowest type first, and micro-batches that nobody needs.
  void LeaveOut(const std::vector<ReplicaSpeed>& speeds, int64_t num_needed,
                std::vector<int64_t>* replicas,
                std::vector<int64_t>* microbatches) const {
    std::vector<size_t> slowest_first(pools_.size());
    std::iota(slowest_first.begin(), slowest_first.end(), size_t{0});
    std::stable_sort(slowest_first.begin(), slowest_first.end(),
                     [&](size_t a, size_t b) {
                       return speeds[a].seconds_per_microbatch >
                              speeds[b].seconds_per_microbatch;
                     });
    int64_t spare = -num_needed;
    for (size_t k = 0; k < pools_.size(); ++k) {
      spare += (*replicas)[k] * (*microbatches)[k];
    }
    for (const size_t k : slowest_first) {
      int64_t& count = (*replicas)[k];
      int64_t& each = (*microbatches)[k];
      if (each == 0) count = 0;
      if (count == 0) continue;
      const int64_t too_much = std::min(spare / count, each);
      each -= too_much;
      spare -= too_much * count;
      if (each == 0) {
        count = 0;
        continue;
      }
      const int64_t too_many = std::min(spare / each, count);
      count -= too_many;
      spare -= too_many * each;
      if (count == 0) each = 0;
    }
  }

  Layout LayoutOn(size_t k, const ReplicaCandidate& candidate) const {
    Layout layout = candidate.layout;
    layout.num_microbatches = static_cast<int32_t>(candidate.microbatches[k]);
    return layout;
  }

  // Nothing where a type's memory does not hold its share.
  std::optional<UnevenPlan> Price(const ReplicaCandidate& candidate) {
    UnevenPlan plan{.split = UnevenPlan::Split::kReplicas,
                    .layout = candidate.layout,
                    .parts = {},
                    .closed_form = {},
                    .timeline = {}};
    StepMemory fullest_memory;
    double fullest = 0;
    int64_t spare = -NumSequences(candidate.layout);
    for (size_t k = 0; k < pools_.size(); ++k) {
      spare += candidate.replicas[k] * candidate.microbatches[k];
    }
    for (size_t k = 0; k < pools_.size(); ++k) {
      if (candidate.replicas[k] == 0) continue;
      const StepPrediction step =
          pools_[k].model.Predict(LayoutOn(k, candidate));
      const int64_t bytes = step.memory.total();
      if (bytes > pools_[k].memory_limit) return std::nullopt;
      const double fill = static_cast<double>(bytes) /
                          static_cast<double>(pools_[k].memory_limit);
      if (fill > fullest) {
        fullest = fill;
        fullest_memory = step.memory;
      }
      if (step.time.step_time_s() > plan.step_time_s) {
        plan.step_time_s = step.time.step_time_s();
        plan.closed_form.time = step.time;
      }
      const auto num_replicas = static_cast<int32_t>(candidate.replicas[k]);
      // What is too much is less than one micro-batch of every replica.
      const int32_t one_less =
          static_cast<int32_t>(std::min<int64_t>(spare, num_replicas));
      spare -= one_less;
      const Layout& layout = candidate.layout;
      plan.parts.push_back(
          {.devices = pools_[k].profile.name,
           .num_devices = num_replicas * layout.num_ranks() / layout.data,
           .layers_by_stage = {},
           .num_replicas = num_replicas,
           .num_microbatches = static_cast<int32_t>(candidate.microbatches[k]),
           .num_replicas_with_one_less = one_less,
           .memory_bytes = bytes,
           .busy_s = BusySeconds(step.time)});
    }
    plan.closed_form.memory = fullest_memory;
    return plan;
  }

  // All types begin together and reduce together: the last decides.
  absl::StatusOr<UnevenPlan> Simulate(const ReplicaCandidate& candidate) {
    UnevenPlan plan = *Price(candidate);
    plan.step_time_s = 0;
    for (size_t k = 0; k < pools_.size(); ++k) {
      if (candidate.replicas[k] == 0) continue;
      PricedPool& pool = pools_[k];
      ASSIGN_OR_RETURN(const ClusterStep step,
                       ClusterStepOf(LayoutOn(k, candidate), Implementation{},
                                     pool.profile, pool.model));
      ASSIGN_OR_RETURN(
          ClusterSimulation simulation,
          SimulateCluster(step, {.overlap = pool.profile.overlap}));
      if (simulation.step_time_s <= plan.step_time_s) continue;
      plan.step_time_s = simulation.step_time_s;
      plan.bubble_fraction = simulation.bubble_fraction;
      plan.exposed_communication_fraction = simulation.exposed_data_fraction;
      plan.timeline = std::move(simulation.timeline);
    }
    const StepTime& time = plan.closed_form.time;
    plan.exposed_communication_fraction +=
        (time.exposed_tensor_s + time.exposed_context_s +
         time.exposed_expert_s) /
        plan.step_time_s;
    return plan;
  }

  const UnevenSearch& search_;
  const ModelSpec& model_;
  const LayoutConstraints& pinned_;
  const PlannedSpace all_;
  std::vector<PricedPool> pools_;
  BestFew<ReplicaCandidate> best_;
  int64_t num_considered_ = 0;
  double floor_s_ = kReplicaNever;  // Of what was not left out as too slow.
};

}  // namespace

absl::StatusOr<UnevenFound> FindUnevenReplicas(const UnevenSearch& search) {
  ASSIGN_OR_RETURN(
      std::vector<PricedPool> pools,
      PricePools(search, Implementation{}, /*joins_networks=*/true));
  return ReplicaSearch(search, std::move(pools)).Run();
}

}  // namespace millrace
