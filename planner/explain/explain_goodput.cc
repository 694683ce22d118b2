#include "planner/explain/explain_goodput.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/units.h"

namespace millrace {

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

}  // namespace millrace
