#include "planner/fleet/disturbance.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/statistics.h"
#include "base/status_macros.h"
#include "planner/cost/closed_form.h"
#include "planner/graph/style.h"
#include "planner/profile/changed_hardware.h"
#include "planner/profile/prediction_interval.h"
#include "planner/search/listed_order.h"
#include "planner/search/program_prediction.h"
#include "planner/search/search_budget.h"
#include "planner/simulate/simulate_passes.h"

namespace millrace {
namespace {

constexpr size_t kMostCauses = 10;

// Returns the standard deviation of the logarithm of log-normal times whose own
// standard deviation is `noise` times their mean.
double SigmaOf(double noise) { return std::sqrt(std::log1p(noise * noise)); }

// The prices of a layout's passes and ends.
struct Prices {
  PipelineCosts costs;
  StepModel::StepEnds ends;
};

absl::StatusOr<Prices> PricesOf(const ModelSpec& model, const Plan& plan,
                                const HardwareProfile& profile) {
  const Implementation implementation = {.pipeline_outermost =
                                             plan.pipeline_outermost};
  ASSIGN_OR_RETURN(StepModel prices,
                   StepModel::Create(model, profile, implementation));
  return Prices{.costs = prices.PassCosts(plan.layout),
                .ends = prices.EndsOf(plan.layout)};
}

double Ratio(double slow, double fast) {
  return fast > 0 ? std::max(1.0, slow / fast) : 1;
}

std::vector<double> SecondsByStage(const PipelineCosts& costs) {
  std::vector<double> seconds(costs.num_stages, 0);
  for (size_t c = 0; c < costs.chunks.size(); ++c) {
    const ChunkCosts& chunk = costs.chunks[c];
    seconds[costs.stage_of_chunk[c]] +=
        chunk.forward_s + chunk.input_gradient_s + chunk.weight_gradient_s;
  }
  return seconds;
}

absl::Status WrongLink(const DegradedLink& link,
                       const HardwareProfile& profile) {
  return absl::InvalidArgumentError(absl::StrCat(
      "--slow-link: profile '", profile.name, "' has no link '", link.level,
      "'; it has ",
      profile.network.empty()
          ? "no network section"
          : absl::StrJoin(profile.network, ", ",
                          [](std::string* out, const NetworkLevel& level) {
                            absl::StrAppend(out, level.name);
                          })));
}

// Returns the ratio of times with the slow link on every node and without it.
// The simulation decides where the link is used.
absl::StatusOr<SlowLink> PriceLink(const ModelSpec& model, const Plan& plan,
                                   const HardwareProfile& profile,
                                   const DegradedLink& asked) {
  const std::optional<size_t> level = LinkLevel(asked.level, profile);
  if (!level.has_value()) return WrongLink(asked, profile);
  HardwareProfile degraded = profile;
  ScaleLink(*level, asked.rate, &degraded);
  ASSIGN_OR_RETURN(const Prices before, PricesOf(model, plan, profile));
  ASSIGN_OR_RETURN(const Prices after, PricesOf(model, plan, degraded));
  const int32_t joined = profile.network[*level].devices;
  SlowLink link{
      .machine = asked.node,
      .passes = SecondsByStage(after.costs),
      .transfer = Ratio(after.costs.transfer_s, before.costs.transfer_s),
      .is_inside = joined > 0 && joined <= profile.ranks_per_host,
      .parameter_gather =
          Ratio(after.ends.parameter_gather_s, before.ends.parameter_gather_s),
      .gradient_reduction = Ratio(after.ends.gradient_reduction_s,
                                  before.ends.gradient_reduction_s)};
  const std::vector<double> fast = SecondsByStage(before.costs);
  for (size_t s = 0; s < fast.size(); ++s) {
    link.passes[s] = Ratio(link.passes[s], fast[s]);
  }
  return link;
}

absl::Status CheckPlace(absl::string_view what, int64_t idx, int64_t count) {
  if (idx < count) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--straggler or --slow-link ", what, "=", idx, ": the layout has ", count,
      " ", what, "s, numbered from 0"));
}

absl::StatusOr<PassOptions> OptionsOf(const ModelSpec& model,
                                      const HardwareProfile& profile,
                                      const Plan& plan,
                                      const DisturbanceSpec& spec) {
  PassOptions options{.overlap = profile.overlap,
                      .noise_sigma = SigmaOf(spec.pass_noise),
                      .step_sigma = SigmaOf(spec.step_noise),
                      .ranks_per_machine = profile.ranks_per_host,
                      .seed = spec.seed,
                      .keeps_timeline = false,
                      .finds_causes = true};
  const int64_t num_ranks = plan.layout.num_ranks();
  const int64_t num_nodes =
      (num_ranks + profile.ranks_per_host - 1) / profile.ranks_per_host;
  for (const Straggler& straggler : spec.stragglers) {
    switch (straggler.what) {
      case Straggler::What::kShareOfNodes:
        options.straggler_share = straggler.share;
        options.straggler_factor = straggler.factor;
        break;
      case Straggler::What::kNode: {
        RETURN_IF_ERROR(CheckPlace("node", straggler.idx, num_nodes));
        std::vector<double>& nodes = options.machine_slowdown;
        nodes.resize(std::max<size_t>(nodes.size(), straggler.idx + 1), 1);
        nodes[straggler.idx] *= straggler.factor;
        break;
      }
      case Straggler::What::kDevice:
        RETURN_IF_ERROR(CheckPlace("device", straggler.idx, num_ranks));
        options.slow_ranks.push_back({straggler.idx, straggler.factor});
        break;
    }
  }
  for (const DegradedLink& link : spec.links) {
    RETURN_IF_ERROR(CheckPlace("node", link.node, num_nodes));
    ASSIGN_OR_RETURN(SlowLink priced, PriceLink(model, plan, profile, link));
    options.slow_links.push_back(std::move(priced));
  }
  return options;
}

std::string RanksText(const PassStep& step, const SlowdownCause& cause,
                      int32_t ranks_per_node) {
  const int64_t first = FirstRankOf(step, cause.replica, cause.stage);
  const int64_t last = first + step.ranks_per_pass - 1;
  const int64_t first_node = first / ranks_per_node;
  const int64_t last_node = last / ranks_per_node;
  return absl::StrCat(
      first == last ? absl::StrCat("rank ", first)
                    : absl::StrCat("ranks ", first, " to ", last),
      first_node == last_node
          ? absl::StrCat(" of node ", first_node)
          : absl::StrCat(" of nodes ", first_node, " to ", last_node));
}

// Names the slow links of nodes [first, last]: ", over fabric of node 3".
std::string LinksText(const DisturbanceSpec& spec, int64_t first,
                      int64_t last) {
  std::string text;
  for (const DegradedLink& link : spec.links) {
    if (link.node < first || link.node > last) continue;
    absl::StrAppend(&text, text.empty() ? ", over " : " or ", link.level,
                    " of node ", link.node);
  }
  return text;
}
// Names the slow links that any rank may have.
std::string LinksText(const DisturbanceSpec& spec) {
  return LinksText(spec, 0, std::numeric_limits<int64_t>::max());
}

std::string TransferText(const PassStep& step, const SlowdownCause& cause,
                         int32_t ranks_per_node, const DisturbanceSpec& spec) {
  std::string links;
  for (const int32_t stage : {cause.stage, cause.receiver}) {
    const int64_t first = FirstRankOf(step, cause.replica, stage);
    absl::StrAppend(
        &links, LinksText(spec, first / ranks_per_node,
                          (first + step.ranks_per_pass - 1) / ranks_per_node));
  }
  return absl::StrCat("transfers from stage ", cause.stage, " to stage ",
                      cause.receiver, " in replica ", cause.replica,
                      ", sent by ", RanksText(step, cause, ranks_per_node),
                      links);
}

std::string CauseText(const PassStep& step, const SlowdownCause& cause,
                      int32_t ranks_per_node, const DisturbanceSpec& spec) {
  switch (cause.kind) {
    case SlowdownCause::Kind::kPasses:
      return absl::StrCat("passes of stage ", cause.stage, " in replica ",
                          cause.replica, ", ",
                          RanksText(step, cause, ranks_per_node));
    case SlowdownCause::Kind::kTransfers:
      return TransferText(step, cause, ranks_per_node, spec);
    case SlowdownCause::Kind::kGathers:
      return absl::StrCat("gathers of stage ", cause.stage, "'s parameters",
                          LinksText(spec));
    case SlowdownCause::Kind::kReductions:
      return absl::StrCat("reductions of stage ", cause.stage, "'s gradients",
                          LinksText(spec));
    case SlowdownCause::Kind::kOptimizer:
      return absl::StrCat("the optimizer of stage ", cause.stage);
  }
  return "";
}

int32_t StepsFor(const PassStep& step, const DisturbanceSpec& spec) {
  if (spec.num_steps.has_value()) return *spec.num_steps;
  // Passes in both directions and their transfers.
  const double ops = 4.0 * static_cast<double>(step.costs.chunks.size()) *
                     step.costs.num_microbatches * step.num_replicas;
  return static_cast<int32_t>(std::clamp(kSearchBudget.drawn_ops / ops,
                                         kSearchBudget.fewest_drawn_steps,
                                         kSearchBudget.most_drawn_steps));
}

void FillSpread(const std::vector<double>& steps_s, DisturbedStep* disturbed) {
  double squares = 0;
  for (const double step_s : steps_s) {
    squares +=
        (step_s - disturbed->step_time_s) * (step_s - disturbed->step_time_s);
  }
  if (steps_s.size() > 1) {
    disturbed->deviation_s =
        std::sqrt(squares / static_cast<double>(steps_s.size() - 1));
  }
  disturbed->p5_s = Quantile(steps_s, 0.05);
  disturbed->median_s = Quantile(steps_s, 0.5);
  disturbed->p95_s = Quantile(steps_s, 0.95);
  disturbed->longest_s = Quantile(steps_s, 1);
}

}  // namespace

absl::StatusOr<DisturbedStep> SimulateDisturbed(const JobSpec& job,
                                                const HardwareProfile& profile,
                                                const Plan& plan,
                                                const DisturbanceSpec& spec) {
  PassStep step;
  if (plan.programs == nullptr) {
    const Implementation implementation = {.pipeline_outermost =
                                               plan.pipeline_outermost};
    ASSIGN_OR_RETURN(StepModel prices,
                     StepModel::Create(job.model, profile, implementation));
    ASSIGN_OR_RETURN(step, PassStepOf(plan.layout, implementation, prices));
    if (!plan.listed_bytes.empty()) {
      RETURN_IF_ERROR(ListPasses(plan.listed_bytes, &step));
    }
  } else {
    ASSIGN_OR_RETURN(const CostModel cost, CostModel::Create(profile));
    ASSIGN_OR_RETURN(step, PassesOfPrograms(*plan.programs, cost));
  }
  ASSIGN_OR_RETURN(PassOptions options,
                   OptionsOf(job.model, profile, plan, spec));
  options.num_steps = StepsFor(step, spec);
  ASSIGN_OR_RETURN(const PassSimulation simulation,
                   SimulatePasses(step, options));
  const double scale =
      plan.prediction.step_time_s / simulation.undisturbed_step_time_s;
  std::vector<double> steps_s = simulation.step_times_s;
  for (double& step_s : steps_s) step_s *= scale;
  const StepTimeInterval interval =
      IntervalOfSteps(steps_s, ErrorFor(job.model, profile));
  DisturbedStep disturbed{
      .step_time_s = scale * simulation.step_time_s,
      .slowdown =
          simulation.step_time_s / simulation.undisturbed_step_time_s - 1,
      .low_s = interval.low_s,
      .high_s = interval.high_s,
      .num_steps = options.num_steps,
      .seed = spec.seed,
      .num_slow_nodes = simulation.num_slow_machines,
      .causes = {}};
  FillSpread(steps_s, &disturbed);
  for (const SlowdownCause& cause : simulation.causes) {
    if (cause.seconds <= 0 || disturbed.causes.size() == kMostCauses) break;
    disturbed.causes.push_back(
        {.text = CauseText(step, cause, profile.ranks_per_host, spec),
         .seconds = scale * cause.seconds});
  }
  return disturbed;
}

}  // namespace millrace
