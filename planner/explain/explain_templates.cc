#include "planner/explain/explain_templates.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/units.h"
#include "planner/search/prediction.h"

namespace millrace {

std::string LostNodesTable(const LostNodesAnswer& answer) {
  std::string text = absl::StrFormat(
      "\n  %-11s %7s %7s %10s %10s %7s %10s %10s  %s\n", "lost nodes",
      "devices", "idle", "step time", "tokens/s", "of all", "template", "anew",
      absl::StrCat("layout (nodes of ", answer.devices_per_node, ")"));
  for (const LostNodesRow& row : answer.rows) {
    const PlanTemplate& plan = row.plan;
    const bool is_new = !plan.keeps_layout;
    absl::StrAppendFormat(
        &text, "  %-11d %7d %7d %10s %10s %5.1f %% %10s %10s  %s\n",
        plan.num_lost_nodes, plan.num_devices, plan.num_idle_devices(),
        FormatStepTime(plan.step_time_s), FormatCount(plan.tokens_per_s),
        100 * plan.tokens_per_s / answer.rows.front().plan.tokens_per_s,
        is_new ? FormatSeconds(row.look_up_s) : "-",
        is_new ? FormatSeconds(row.anew_s) : "-",
        is_new || plan.num_lost_nodes == 0
            ? absl::StrCat(
                  LayoutToString(plan.layout),
                  plan.pipeline_outermost ? ", pipeline outermost" : "",
                  plan.plan_only ? ", plan only" : "")
            : "the same, on idle devices");
  }
  if (!answer.end.empty()) {
    absl::StrAppend(&text, "  no template for more: ", answer.end, "\n");
  }
  return text;
}

}  // namespace millrace
