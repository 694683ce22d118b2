#include "planner/explain/explain_fleet.h"

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/units.h"
#include "planner/explain/layout_name.h"
#include "planner/search/prediction.h"
#include "planner/text/page.h"

namespace millrace {
namespace {

// Noise alone makes a different rank the last in each step, so more causes
// would be arbitrary.
constexpr size_t kShownDisturbanceCauses = 3;
constexpr double kShownShare = 0.05;

}  // namespace

std::string GoodputText(const GoodputReport& report) {
  std::string text;
  if (report.considers_failures) {
    absl::StrAppendFormat(
        &text,
        "%.1f %% of the time trains (checkpoints %.1f %%, lost work %.1f %%, "
        "recovery %.1f %%, waiting %.1f %%, missing nodes %.1f %%): a failure "
        "every %s, a checkpoint "
        "every %d steps or %s, %d spare %s",
        100 * report.goodput_fraction, 100 * report.checkpoint_fraction,
        100 * report.lost_work_fraction, 100 * report.recovery_fraction,
        100 * report.waiting_fraction, 100 * report.missing_nodes_fraction,
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

std::vector<std::string> DisturbanceLines(const DisturbedStep& disturbed) {
  std::vector<std::string> lines = {
      absl::StrFormat(
          "%s expected, %.1f %% slower (%s to %s with the model's error)",
          FormatStepTime(disturbed.step_time_s), 100 * disturbed.slowdown,
          FormatStepTime(disturbed.low_s), FormatStepTime(disturbed.high_s)),
      absl::StrFormat(
          "of %d simulated steps (seed %d) 5 %% take less than %s, half less "
          "than %s, 5 %% more than %s; the longest %s",
          disturbed.num_steps, disturbed.seed, FormatStepTime(disturbed.p5_s),
          FormatStepTime(disturbed.median_s), FormatStepTime(disturbed.p95_s),
          FormatStepTime(disturbed.longest_s))};
  if (disturbed.num_slow_nodes > 0) {
    lines.push_back(absl::StrCat(
        disturbed.num_slow_nodes,
        disturbed.num_slow_nodes == 1 ? " node is" : " nodes are", " slow"));
  }
  const double added_s =
      disturbed.step_time_s * (1 - 1 / (1 + disturbed.slowdown));
  size_t num_shown = 0;
  for (const DisturbanceCause& cause : disturbed.causes) {
    if (num_shown == kShownDisturbanceCauses ||
        cause.seconds < kShownShare * added_s) {
      break;
    }
    lines.push_back(
        absl::StrCat("+", FormatStepTime(cause.seconds), " by ", cause.text));
    ++num_shown;
  }
  if (num_shown == 0 && !disturbed.causes.empty()) {
    lines.push_back(
        absl::StrCat("no single rank or link adds much: each is the last to "
                     "finish now and then, most often ",
                     disturbed.causes.front().text));
  }
  return lines;
}

std::string LostNodesTable(const LostNodesAnswer& answer) {
  std::string text = absl::StrFormat(
      "\n  %-10s %7s %5s %9s %9s %7s %8s %8s  %s\n", "lost nodes", "devices",
      "idle", "step", "tokens/s", "of all", "template", "anew",
      absl::StrCat("layout (nodes of ", answer.devices_per_node, ")"));
  for (const LostNodesRow& row : answer.rows) {
    const PlanTemplate& plan = row.plan;
    const bool is_new = !plan.keeps_layout;
    const std::string cells = absl::StrFormat(
        "  %-10d %7d %5d %9s %9s %5.1f %% %8s %8s  ", plan.num_lost_nodes,
        plan.num_devices, plan.num_idle_devices(),
        FormatStepTime(plan.step_time_s), FormatCount(plan.tokens_per_s),
        100 * plan.tokens_per_s / answer.rows.front().plan.tokens_per_s,
        is_new ? FormatSeconds(row.look_up_s) : "-",
        is_new ? FormatSeconds(row.anew_s) : "-");
    const std::string name =
        is_new || plan.num_lost_nodes == 0
            ? absl::StrCat(LayoutName(plan.layout),
                           plan.plan_only ? ", plan only" : "")
            : "the same, on idle devices";
    absl::StrAppend(&text, RowWithName(cells, name), "\n");
  }
  if (!answer.end.empty()) {
    absl::StrAppend(
        &text,
        WrapLine(absl::StrCat("  no template for more: ", answer.end), 4),
        "\n");
  }
  return text;
}

}  // namespace millrace
