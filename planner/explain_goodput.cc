#include "planner/explain_goodput.h"

#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/units.h"

namespace millrace {
namespace {

// Bytes of what one rank's optimizer keeps, as a checkpoint holds it.
double CheckpointBytes(const Plan& plan) {
  const auto kept = static_cast<double>(plan.prediction.optimizer_bytes);
  // In fp32 the weights themselves are what in bf16 are the master weights.
  return plan.layout.precision == Precision::kFloat32 ? 1.5 * kept : kept;
}

}  // namespace

std::optional<GoodputReport> GoodputOf(
    const PlanningCase& planned, const Plan& plan,
    std::vector<double> throughput_by_nodes_lost) {
  const GoodputSpec& spec = planned.job.goodput;
  if (spec.mean_time_between_failures_hours == 0 &&
      spec.price_per_device_hour == 0) {
    return std::nullopt;
  }
  const Prediction& prediction = plan.prediction;
  return PredictGoodput(
      spec,
      {.step_time_s = prediction.step_time_s,
       .tokens_per_step = prediction.tokens_per_s * prediction.step_time_s,
       .num_devices = plan.layout.num_ranks(),
       .devices_per_node = planned.profile.ranks_per_host,
       .checkpoint_bytes_per_device = CheckpointBytes(plan),
       .throughput_by_nodes_lost = std::move(throughput_by_nodes_lost)});
}

std::string GoodputText(const GoodputReport& report) {
  std::string text;
  if (report.considers_failures) {
    absl::StrAppendFormat(
        &text,
        "%.1f %% of the time trains (checkpoints %.1f %%, lost work %.1f %%, "
        "recovery %.1f %%, waiting %.1f %%): a failure every %s, a checkpoint "
        "every %d steps or %s, %d spare %s",
        100 * report.goodput_fraction, 100 * report.checkpoint_fraction,
        100 * report.lost_work_fraction, 100 * report.recovery_fraction,
        100 * report.waiting_fraction,
        FormatSeconds(report.cluster_mean_time_between_failures_s),
        report.checkpoint_interval_steps,
        FormatSeconds(report.checkpoint_interval_s), report.num_spare_nodes,
        report.num_spare_nodes == 1 ? "node" : "nodes");
    if (report.replans) {
      absl::StrAppend(&text, ", then on with fewer nodes");
    }
  } else {
    text = "failures are not considered";
  }
  absl::StrAppend(&text, "; ", FormatCount(report.tokens_per_s), " tokens/s");
  if (report.tokens_per_dollar > 0) {
    absl::StrAppend(&text, ", ", FormatCount(report.tokens_per_dollar),
                    " tokens for each unit of money");
  }
  return text;
}

}  // namespace millrace
