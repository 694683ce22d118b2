#include "planner/explain/plan_table.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/units.h"
#include "planner/explain/explain_neighbours.h"
#include "planner/explain/layout_name.h"
#include "planner/layout/layout.h"
#include "planner/search/prediction.h"
#include "planner/text/page.h"

namespace millrace {
namespace {

// The number of alternatives shown. More would tell a reader nothing new.
constexpr size_t kShownAlternatives = 10;
// A longer name gets its own line, so that it does not widen the column.
constexpr size_t kWidestNameColumn = 48;
// Marks of step times that another model than the choice's gave.
constexpr std::pair<PriceModel, const char*> kMarks[] = {
    {PriceModel::kClosedForm, "~"}, {PriceModel::kPasses, "*"}};

// Returns the first alternatives, but of layouts that differ only in chunks
// only the first.
std::vector<const Alternative*> ShownAlternatives(const Plan& plan) {
  std::vector<const Alternative*> shown;
  for (const Alternative& alternative : plan.alternatives) {
    const bool is_twin =
        DifferInChunksOnly(alternative.layout, plan.layout) ||
        std::ranges::any_of(shown, [&](const Alternative* other) {
          return DifferInChunksOnly(alternative.layout, other->layout);
        });
    if (!is_twin && shown.size() < kShownAlternatives) {
      shown.push_back(&alternative);
    }
  }
  return shown;
}

std::string MarkOf(const Alternative& alternative, const Plan& plan) {
  for (const auto& [model, mark] : kMarks) {
    if (model == plan.prediction.model) continue;
    if (alternative.prediction.model == model) return mark;
  }
  return "";
}

struct Row {
  std::string name;
  std::string step;
  std::string memory;
  std::string mfu;
  std::string why_not;
};

Row RowOf(const std::string& name, const Prediction& prediction,
          std::string why_not) {
  return {.name = name,
          .step = FormatStepTime(prediction.step_time_s),
          .memory = prediction.memory_bytes() > 0
                        ? FormatBytes(prediction.memory_bytes())
                        : "-",
          .mfu = prediction.mfu_causal > 0
                     ? absl::StrFormat("%.1f %%", 100 * prediction.mfu_causal)
                     : "-",
          .why_not = std::move(why_not)};
}

// Formats "chosen, 3.90 s to 4.97 s".
std::string ChosenText(const Prediction& prediction) {
  if (!prediction.step_time_low_s || !prediction.step_time_high_s) {
    return "chosen";
  }
  return absl::StrCat("chosen, ", FormatStepTime(*prediction.step_time_low_s),
                      " to ", FormatStepTime(*prediction.step_time_high_s));
}

Row RowOf(const Alternative& alternative, const Plan& plan) {
  Row row =
      RowOf(LayoutName(alternative.layout, !alternative.listed_bytes.empty()),
            alternative.prediction,
            alternative.brief_reason.empty() ? alternative.reason
                                             : alternative.brief_reason);
  row.step.insert(0, MarkOf(alternative, plan));
  return row;
}

// Widths of the two columns whose cells vary most.
struct Widths {
  size_t name = 0;
  size_t step = 0;
};

std::string RowText(const Widths& widths, const Row& row) {
  const bool is_wide = row.name.size() > widths.name;
  const std::string front =
      absl::StrFormat("  %-*s  %*s  %8s  %6s  ", static_cast<int>(widths.name),
                      is_wide ? "" : row.name, static_cast<int>(widths.step),
                      row.step, row.memory, row.mfu);
  return absl::StrCat(is_wide ? absl::StrCat("  ", row.name, "\n") : "",
                      WrapLine(absl::StrCat(front, row.why_not), front.size()),
                      "\n");
}

// Explains the marks at step times and counts the layouts that are not shown.
std::string TableNotes(const Plan& plan,
                       const std::vector<const Alternative*>& shown) {
  std::string text;
  for (const auto& [model, mark] : kMarks) {
    const auto marked =
        std::find_if(shown.begin(), shown.end(),
                     [&, &mark = mark](const Alternative* alternative) {
                       return MarkOf(*alternative, plan) == mark;
                     });
    if (marked == shown.end()) continue;
    absl::StrAppend(
        &text,
        WrapLine(absl::StrCat(
                     "  ", mark, " step time by ", PriceModelName(model),
                     ": the chosen layout's is ",
                     FormatStepTime(PredictionBy(model, plan)->step_time_s)),
                 4),
        "\n");
  }
  if (shown.size() < plan.alternatives.size()) {
    absl::StrAppend(&text, "  and ", plan.alternatives.size() - shown.size(),
                    " more; --json lists them all\n");
  }
  return text;
}

}  // namespace

std::string PlanTable(const Plan& plan) {
  std::vector<Row> rows = {
      RowOf(NameOf(plan), plan.prediction, ChosenText(plan.prediction))};
  const std::vector<const Alternative*> shown = ShownAlternatives(plan);
  for (const Alternative* alternative : shown) {
    rows.push_back(RowOf(*alternative, plan));
  }
  rows.insert(rows.begin(), {.name = "layout",
                             .step = "step",
                             .memory = "memory",
                             .mfu = "MFU",
                             .why_not = "why not"});
  Widths widths;
  for (const Row& row : rows) {
    if (row.name.size() <= kWidestNameColumn) {
      widths.name = std::max(widths.name, row.name.size());
    }
    widths.step = std::max(widths.step, row.step.size());
  }
  std::string text;
  for (const Row& row : rows) absl::StrAppend(&text, RowText(widths, row));
  return absl::StrCat(text, TableNotes(plan, shown));
}

std::string ReasonsInFull(const Plan& plan) {
  std::string text;
  for (const Alternative* alternative : ShownAlternatives(plan)) {
    absl::StrAppend(
        &text,
        WrapLine(absl::StrCat(
                     "    ", LayoutToString(alternative->layout),
                     alternative->listed_bytes.empty() ? "" : ", passes listed",
                     ": ", alternative->reason),
                 6),
        "\n");
  }
  return text.empty() ? "" : absl::StrCat("  why others lost\n", text);
}

}  // namespace millrace
