#include "planner/explain/explain_templates.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/units.h"
#include "planner/explain/layout_name.h"
#include "planner/search/prediction.h"
#include "planner/text/page.h"

namespace millrace {

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
