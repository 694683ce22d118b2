#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "base/status_macros.h"
#include "planner/cost/stage_time.h"
#include "planner/fleet/uneven.h"
#include "planner/fleet/uneven_parts.h"
#include "planner/fleet/uneven_split.h"
#include "planner/pipeline/pass_order.h"
#include "planner/simulate/simulate_passes.h"

namespace millrace {
namespace {

// Of more than two types, stages of each are tried in these numbers up to as
// many as there is room for; beyond, one in so many.
constexpr int32_t kAllTried = 16;
constexpr int32_t kTriedShare = 8;

constexpr double kStageNever = std::numeric_limits<double>::infinity();

// Which stages lie where: types in this order, each with so many stages.
struct StagesOfPool {
  size_t pool;
  int32_t num_stages;
};

struct StageCandidate {
  Layout layout;
  std::vector<StagesOfPool> types;
  std::vector<int64_t> layers;  // By stage.
};

std::vector<int32_t> StageCounts(int64_t room, bool are_all) {
  std::vector<int32_t> counts;
  for (int64_t n = room; n >= 1;
       n -=
       are_all || n <= kAllTried ? 1 : std::max<int64_t>(1, n / kTriedShare)) {
    counts.push_back(static_cast<int32_t>(n));
  }
  return counts;
}

class StageSearch {
 public:
  StageSearch(const UnevenSearch& search, std::vector<PricedPool> pools)
      : search_(search),
        model_(search.job.model),
        pinned_(search.job.layout),
        all_(SpaceOfAll(search)),
        pools_(std::move(pools)),
        best_(search.slowest_s) {}

  absl::StatusOr<UnevenFound> Run() {
    UnevenFound found{.plan = std::nullopt, .floor_s = kStageNever};
    // Stages of a type are alike but for their layers.
    if (NamesStages(pinned_)) return found;
    // Which layers a stage has matters where they differ.
    if (model_.num_dense_layers() > 0 && model_.num_expert_layers() > 0) {
      return found;
    }
    if (pinned_.schedule != "auto" && pinned_.schedule != "1f1b") {
      return found;
    }
    for (const Layout& sharding : all_.Shardings()) SearchSharding(sharding);
    ASSIGN_OR_RETURN(found.plan,
                     best_.Fastest([this](const StageCandidate& candidate) {
                       return Simulate(candidate);
                     }));
    if (found.plan.has_value()) {
      found.plan->layouts_considered = num_considered_;
    }
    found.floor_s = floor_s_;
    return found;
  }

 private:
  StageKind KindOf(int32_t stage, int32_t num_stages, int64_t layers) const {
    StageKind kind{.has_embedding = stage == 0,
                   .has_head = stage + 1 == num_stages,
                   .first = stage};
    (model_.num_expert_layers() > 0 ? kind.num_experts : kind.num_dense) =
        layers;
    return kind;
  }

  void SearchSharding(const Layout& sharding) {
    const int64_t sequences =
        search_.job.training.global_batch / sharding.micro_batch;
    for (const int32_t data : DivisorsOf(sequences)) {
      const int64_t stage_ranks =
          int64_t{sharding.tensor} * sharding.context * data;
      if (!Permits(pinned_.data, data) ||
          stage_ranks / sharding.expert_tensor % sharding.expert != 0) {
        continue;
      }
      std::vector<int64_t> room;
      for (const PricedPool& pool : pools_) {
        room.push_back(pool.UsableDevices(sharding.tensor) / stage_ranks);
      }
      if (std::count_if(room.begin(), room.end(),
                        [](int64_t count) { return count > 0; }) < 2) {
        continue;
      }
      Layout mesh = sharding;
      mesh.data = data;
      mesh.num_microbatches = static_cast<int32_t>(sequences / data);
      // Seconds of a layer by type, with the least computed again.
      mesh.recompute = RecomputesOf(pinned_, pools_.front(), mesh).front();
      mesh.pipeline = 2;
      layer_s_.clear();
      for (PricedPool& pool : pools_) {
        layer_s_.push_back(SpeedOf(pool, mesh, 0, 1).seconds_per_layer);
      }
      SearchTypes(mesh, room, {});
    }
  }

  // Adds types to `types` in every order and number.
  void SearchTypes(const Layout& mesh, const std::vector<int64_t>& room,
                   const std::vector<StagesOfPool>& types) {
    if (types.size() >= 2) SearchStages(mesh, types);
    int64_t num_stages = 0;
    for (const StagesOfPool& type : types) num_stages += type.num_stages;
    for (size_t k = 0; k < pools_.size(); ++k) {
      const bool is_used =
          std::any_of(types.begin(), types.end(),
                      [&](const StagesOfPool& type) { return type.pool == k; });
      if (is_used) continue;
      for (const int32_t count :
           StageCounts(std::min(room[k], model_.num_layers - num_stages),
                       pools_.size() == 2)) {
        std::vector<StagesOfPool> more = types;
        more.push_back({.pool = k, .num_stages = count});
        SearchTypes(mesh, room, more);
      }
    }
  }

  void SearchStages(Layout mesh, const std::vector<StagesOfPool>& types) {
    double layers_per_s = 0;
    mesh.pipeline = 0;
    for (const StagesOfPool& type : types) {
      mesh.pipeline += type.num_stages;
      layers_per_s += type.num_stages / layer_s_[type.pool];
    }
    if (!Permits(pinned_.pipeline, mesh.pipeline) ||
        !Permits(pinned_.devices, mesh.num_ranks())) {
      return;
    }
    if (FloorOf(mesh, types, layers_per_s) >= best_.slowest_s()) return;
    const std::vector<Recompute> recomputes =
        RecomputesOf(pinned_, pools_.front(), mesh);
    for (const int32_t zero : {0, 1}) {
      if (!Permits(pinned_.zero, zero)) continue;
      if (zero == 1 && mesh.data * mesh.context == 1 && !pinned_.zero) continue;
      for (const Recompute recompute : recomputes) {
        Layout layout = mesh;
        layout.zero = zero;
        layout.recompute = recompute;
        SearchLayers(layout, types);
      }
    }
  }

  // Seconds as if layers could be cut and ends were free. The slowest stage
  // then takes even_s at least; where all do, all together take that for each.
  // A slower one lets the fastest type take layers of the others, which makes
  // the sum less: by no more than the others' micro-batches make it more, or
  // down to all layers on the fastest type.
  double FloorOf(const Layout& mesh, const std::vector<StagesOfPool>& types,
                 double layers_per_s) const {
    const auto num_layers = static_cast<double>(model_.num_layers);
    const double even_s = num_layers / layers_per_s;
    double fastest_s = kStageNever, slowest_s = 0;
    for (const StagesOfPool& type : types) {
      fastest_s = std::min(fastest_s, layer_s_[type.pool]);
      slowest_s = std::max(slowest_s, layer_s_[type.pool]);
    }
    const double others = mesh.num_microbatches - 1;
    const double moved_s = mesh.pipeline * (slowest_s / fastest_s - 1);
    const double sum_s =
        others >= moved_s ? mesh.pipeline * even_s : num_layers * fastest_s;
    return others * even_s + sum_s;
  }

  // What a stage takes, and how many layers its memory holds: both grow by as
  // much with each further layer.
  StageSpeed SpeedOf(PricedPool& pool, const Layout& layout, int32_t stage,
                     int64_t most_layers) {
    const auto figures = [&](int64_t layers) {
      return pool.model.PredictStage(layout,
                                     KindOf(stage, layout.pipeline, layers));
    };
    const auto seconds = [](const ChunkCosts& pass) {
      return pass.forward_s + pass.input_gradient_s + pass.weight_gradient_s;
    };
    const StepModel::StageFigures one = figures(1);
    const StepModel::StageFigures two = figures(2);
    StageSpeed speed{.seconds_per_layer = seconds(two.pass) - seconds(one.pass),
                     .most_layers = most_layers};
    speed.end_s = seconds(one.pass) - speed.seconds_per_layer;
    const int64_t left = pool.memory_limit - one.memory.total();
    const int64_t each = two.memory.total() - one.memory.total();
    speed.most_layers = left < 0    ? 0
                        : each <= 0 ? most_layers
                                    : std::min(most_layers, 1 + left / each);
    return speed;
  }

  void SearchLayers(const Layout& layout,
                    const std::vector<StagesOfPool>& types) {
    ++num_considered_;
    std::vector<StageSpeed> speeds;
    for (const StagesOfPool& type : types) {
      for (int32_t i = 0; i < type.num_stages; ++i) {
        speeds.push_back(SpeedOf(pools_[type.pool], layout,
                                 static_cast<int32_t>(speeds.size()),
                                 model_.num_layers));
        if (speeds.back().most_layers < 1) return;
      }
    }
    const std::optional<std::vector<int64_t>> layers =
        SplitLayers(speeds, model_.num_layers, layout.num_microbatches);
    if (!layers.has_value()) return;
    StageCandidate candidate{
        .layout = layout, .types = types, .layers = *layers};
    const StepTime time = Price(candidate).closed_form.time;
    best_.Add(time.step_time_s(), candidate);
    // No other layers make the passes quicker; of the rest a stage has no less
    // than one of the mean number of layers.
    floor_s_ =
        std::min(floor_s_, time.step_time_s() - time.exposed_data_s -
                               time.optimizer_s + LeastEndsOf(layout, types));
  }

  double LeastEndsOf(const Layout& layout,
                     const std::vector<StagesOfPool>& types) {
    const int64_t layers =
        (model_.num_layers + layout.pipeline - 1) / layout.pipeline;
    StageKind kind = KindOf(0, layout.pipeline, layers);
    kind.has_embedding = kind.has_head = false;
    double least_s = kStageNever;
    for (const StagesOfPool& type : types) {
      const StepModel::StageFigures figures =
          pools_[type.pool].model.PredictStage(layout, kind);
      least_s = std::min(least_s, figures.data_s + figures.ends.optimizer_s);
    }
    return least_s;
  }

  // The pool of each stage.
  std::vector<size_t> PoolsOf(const StageCandidate& candidate) const {
    std::vector<size_t> pools;
    for (const StagesOfPool& type : candidate.types) {
      pools.insert(pools.end(), type.num_stages, type.pool);
    }
    return pools;
  }

  // All but what the simulation says.
  UnevenPlan Price(const StageCandidate& candidate) {
    const Layout& layout = candidate.layout;
    const std::vector<size_t> pools = PoolsOf(candidate);
    UnevenPlan plan{.split = UnevenPlan::Split::kStages,
                    .layout = layout,
                    .pipeline_outermost = true,
                    .parts = {},
                    .closed_form = {},
                    .timeline = {}};
    StepTime& time = plan.closed_form.time;
    double all_s = 0, slowest_s = 0, fullest = 0, hop_s = 0, data_s = 0;
    for (int32_t stage = 0; stage < layout.pipeline; ++stage) {
      const size_t k = pools[stage];
      const StepModel::StageFigures figures = pools_[k].model.PredictStage(
          layout, KindOf(stage, layout.pipeline, candidate.layers[stage]));
      const double pass_s = figures.pass.forward_s +
                            figures.pass.input_gradient_s +
                            figures.pass.weight_gradient_s;
      all_s += pass_s;
      slowest_s = std::max(slowest_s, pass_s);
      hop_s = std::max(hop_s, figures.transfer_s);
      data_s = std::max(data_s, figures.data_s);
      time.optimizer_s = std::max(time.optimizer_s, figures.ends.optimizer_s);
      const double fill = static_cast<double>(figures.memory.total()) /
                          static_cast<double>(pools_[k].memory_limit);
      if (fill > fullest) {
        fullest = fill;
        plan.closed_form.memory = figures.memory;
      }
      if (stage == 0 || pools[stage - 1] != k) {
        plan.parts.push_back({.devices = pools_[k].profile.name,
                              .first_stage = stage,
                              .layers_by_stage = {},
                              .num_replicas = layout.data,
                              .num_microbatches = layout.num_microbatches});
      }
      UnevenPart& part = plan.parts.back();
      part.num_devices += layout.num_ranks() / layout.pipeline;
      part.layers_by_stage.push_back(candidate.layers[stage]);
      part.memory_bytes = std::max(part.memory_bytes, figures.memory.total());
      part.busy_s = std::max(part.busy_s, layout.num_microbatches * pass_s);
    }
    time.compute_s = layout.num_microbatches * slowest_s;
    time.bubble_s = all_s - slowest_s;
    time.transfer_s = 2 * (layout.pipeline - 1) * hop_s;
    time.exposed_data_s = data_s;
    plan.step_time_s = time.step_time_s();
    return plan;
  }

  absl::StatusOr<UnevenPlan> Simulate(const StageCandidate& candidate) {
    const Layout& layout = candidate.layout;
    const std::vector<size_t> pools = PoolsOf(candidate);
    UnevenPlan plan = Price(candidate);
    ClusterStep step{.costs = {.num_stages = layout.pipeline,
                               .num_microbatches = layout.num_microbatches,
                               .stage_of_chunk = {},
                               .chunks = {}},
                     .order = {},
                     .ends = {},
                     .num_replicas = layout.data,
                     .ranks_per_pass = layout.tensor * layout.context,
                     .pipeline_outermost = true};
    OverlapFactors overlap;
    for (int32_t stage = 0; stage < layout.pipeline; ++stage) {
      PricedPool& pool = pools_[pools[stage]];
      const StepModel::StageFigures figures = pool.model.PredictStage(
          layout, KindOf(stage, layout.pipeline, candidate.layers[stage]));
      step.costs.stage_of_chunk.push_back(stage);
      step.costs.chunks.push_back(figures.pass);
      step.costs.transfer_s =
          std::max(step.costs.transfer_s, figures.transfer_s);
      step.ends.push_back(figures.ends);
      step.data_hidden_share =
          std::min(step.data_hidden_share, pool.data_hidden_share);
      overlap.compute = std::max(overlap.compute, pool.profile.overlap.compute);
      overlap.communication =
          std::max(overlap.communication, pool.profile.overlap.communication);
    }
    constexpr int32_t kBuckets = 8;
    step.num_buckets = kBuckets;
    step.order = OneForwardOneBackwardOrder(step.costs);
    ASSIGN_OR_RETURN(ClusterSimulation simulation,
                     SimulateCluster(step, {.overlap = overlap}));
    plan.step_time_s = simulation.step_time_s;
    plan.bubble_fraction = simulation.bubble_fraction;
    plan.exposed_communication_fraction = simulation.exposed_data_fraction;
    plan.timeline = std::move(simulation.timeline);
    return plan;
  }

  const UnevenSearch& search_;
  const ModelSpec& model_;
  const LayoutConstraints& pinned_;
  const PlannedSpace all_;
  std::vector<PricedPool> pools_;
  BestFew<StageCandidate> best_;
  std::vector<double> layer_s_;  // By pool, of the mesh looked at.
  int64_t num_considered_ = 0;
  double floor_s_ = kStageNever;  // Of what was not left out as too slow.
};

}  // namespace

absl::StatusOr<UnevenFound> FindUnevenStages(const UnevenSearch& search) {
  ASSIGN_OR_RETURN(std::vector<PricedPool> pools,
                   PricePools(search, {.pipeline_outermost = true},
                              /*joins_networks=*/false));
  return StageSearch(search, std::move(pools)).Run();
}

}  // namespace millrace
