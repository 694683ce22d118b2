#include "planner/explain/explain.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/units.h"
#include "planner/explain/explain_fleet.h"
#include "planner/explain/explain_neighbours.h"
#include "planner/explain/layout_name.h"
#include "planner/explain/plan_table.h"
#include "planner/profile/learnt_history.h"
#include "planner/search/prediction.h"
#include "planner/search/search_budget.h"
#include "planner/search/snapshot_plan.h"
#include "planner/search/standby_plan.h"
#include "planner/text/page.h"

namespace millrace {
namespace {

// The column at which the text of a named line starts.
constexpr size_t kColumn = 15;

// Returns "  name         text" on as many lines as the text needs; nothing for
// an empty text.
std::string NamedLine(absl::string_view name, absl::string_view text) {
  if (text.empty()) return "";
  return absl::StrCat(
      WrapLine(absl::StrFormat("  %-*s%s", static_cast<int>(kColumn - 2), name,
                               text),
               kColumn),
      "\n");
}

std::string Percent(double fraction) {
  return absl::StrFormat("%.1f %%", 100 * fraction);
}

std::string RankMemoryText(const Plan& plan) {
  const Prediction& prediction = plan.prediction;
  const MomentFormat moments = plan.layout.moments;
  const int64_t other = prediction.overhead_bytes +
                        prediction.persistent_bytes -
                        prediction.parameter_bytes - prediction.gradient_bytes -
                        prediction.optimizer_bytes;
  return absl::StrCat(
      FormatBytes(prediction.memory_bytes()), " a rank at most: parameters ",
      FormatBytes(prediction.parameter_bytes), ", gradients ",
      FormatBytes(prediction.gradient_bytes), ", optimizer ",
      FormatBytes(prediction.optimizer_bytes),
      moments == MomentFormat::kFloat32
          ? ""
          : absl::StrCat(" (moments in ", Describe(moments).name, ")"),
      ", step ", FormatBytes(prediction.step_bytes),
      prediction.staged_bytes == 0
          ? ""
          : absl::StrCat(", snapshots ", FormatBytes(prediction.staged_bytes)),
      other >= kMiB ? absl::StrCat(", other ", FormatBytes(other)) : "");
}

// Formats a price: "norm, 64.0 MiB for 0.05 ms".
std::string PriceText(const RecomputeCandidate& price) {
  return absl::StrCat(RecomputeName(price.op), ", ",
                      FormatBytes(static_cast<int64_t>(price.bytes)), " for ",
                      FormatSeconds(price.seconds));
}

// Says what is recomputed, what it costs, and which op would be next.
std::string RecomputeText(const Plan& plan) {
  const Recompute set = plan.layout.recompute;
  if (set == Recompute::kNone) return "";
  const std::string what = set == Recompute::kFull
                               ? "all layers from their inputs"
                               : RecomputeName(set);
  std::string text = NamedLine(
      "recompute",
      absl::StrCat(
          plan.layout.recompute_by_stage.empty()
              ? what
              : absl::StrCat("by stage, the least with which each fits, at "
                             "most ",
                             what),
          ", ", Percent(plan.prediction.recompute_fraction),
          " of the step, for memory"));
  std::vector<std::string> prices;
  std::string next;
  for (const RecomputeCandidate& price : plan.recompute_prices) {
    if (Has(set, price.op)) {
      prices.push_back(PriceText(price));
    } else if (next.empty()) {
      next = absl::StrCat("; next would be ", PriceText(price));
    }
  }
  if (prices.empty()) return text;
  return absl::StrCat(
      text, NamedLine("", absl::StrCat("saves of each layer and micro-batch: ",
                                       absl::StrJoin(prices, "; "), next)));
}

// Formats "1.20 s (1.10 s to 1.35 s)".
std::string StepTimeText(const Prediction& prediction) {
  std::string text = FormatStepTime(prediction.step_time_s);
  if (prediction.step_time_low_s && prediction.step_time_high_s) {
    absl::StrAppend(&text, " (", FormatStepTime(*prediction.step_time_low_s),
                    " to ", FormatStepTime(*prediction.step_time_high_s), ")");
  }
  return text;
}

bool IsMeasured(const HardwareProfile& profile) {
  return !profile.gemms.empty();
}

// Names the keys of the job's section layout that have a fixed value.
std::string PinnedText(const JobSpec& job) {
  const std::vector<const JobKey*> keys = PinnedKeys(job);
  return keys.empty() ? "" : absl::StrCat("by the job: ", PinsText(keys, job));
}

// Lists limits of the plan that a reader must know.
std::string PlanNotes(const Plan& plan) {
  std::string text;
  if (plan.plan_only) {
    absl::StrAppend(
        &text,
        NamedLine("plan only",
                  absl::StrCat("no worker can execute this layout or model "
                               "yet; the prediction is by ",
                               PriceModelName(plan.prediction.model))));
  }
  if (plan.num_idle_devices > 0) {
    absl::StrAppend(&text,
                    NamedLine("devices", absl::StrCat(plan.num_idle_devices,
                                                      " are left idle")));
  }
  return text;
}

// Says how fast the step is, compared with the peak of its devices.
std::string SpeedLine(const HardwareProfile& profile, const Plan& plan) {
  const Prediction& prediction = plan.prediction;
  return absl::StrCat(
      StepTimeText(prediction), ", ", FormatCount(prediction.tokens_per_s),
      " tokens/s, MFU ", Percent(prediction.mfu_causal),
      IsMeasured(profile) ? " of what each rank's best GEMM alone reaches"
                          : " of the bf16 FLOP/s that the data sheet says");
}

std::string StandbyText(const JobSpec& job, const HardwareProfile& profile,
                        const Plan& plan) {
  if (!plan.keeps_standbys) return "";
  const int64_t num_bytes = StandbyBytes(job, profile);
  return absl::StrCat(
      "a process waits to replace each worker",
      num_bytes == 0 ? ""
                     : absl::StrCat(", with up to ", FormatBytes(num_bytes),
                                    " of its GPU"));
}

// Shows the chosen layout, its time and its memory, part by part.
std::string Choice(const JobSpec& job, const HardwareProfile& profile,
                   const Plan& plan, const PlanAnswers& answers) {
  const Prediction& prediction = plan.prediction;
  const double training_s =
      prediction.step_time_s * static_cast<double>(job.training.num_steps);
  return absl::StrCat(
      NamedLine(
          "layout",
          absl::StrCat(LayoutToString(plan.layout),
                       plan.layout.tensor > 1 ? ", sequence-parallel" : "")),
      NamedLine("pinned", PinnedText(job)),
      NamedLine("placement",
                plan.pipeline_outermost
                    ? "innermost first: tensor, context, data, pipeline"
                    : ""),
      NamedLine("order", plan.listed_bytes.empty()
                             ? ""
                             : "list scheduling orders the passes by their "
                               "costs, within memory"),
      NamedLine("step time", SpeedLine(profile, plan)),
      NamedLine("training", absl::StrCat(FormatSeconds(training_s), " for ",
                                         job.training.num_steps,
                                         " steps, without start and "
                                         "checkpoints")),
      answers.parts.has_value()
          ? NamedLine("time", BindingText(*answers.parts, plan, profile))
          : "",
      NamedLine(
          "idle",
          absl::StrCat("bubble ", Percent(prediction.bubble_fraction),
                       " of the step, exposed communication ",
                       Percent(prediction.exposed_communication_fraction))),
      NamedLine("memory", RankMemoryText(plan)),
      NamedLine("standby", StandbyText(job, profile, plan)),
      NamedLine("snapshots", plan.snapshots.has_value()
                                 ? SnapshotText(*plan.snapshots)
                                 : ""),
      RecomputeText(plan),
      answers.next_step.empty()
          ? ""
          : NamedLine("levers", NextStepText(plan, answers.next_step)),
      NamedLine("in 8 bits", Float8GainText(plan, answers.float8)));
}

std::string SearchText(const Plan& plan) {
  std::string text =
      absl::StrCat(plan.layouts_considered,
                   plan.layouts_considered == 1 ? " layout" : " layouts",
                   plan.prediction.model == PriceModel::kClosedForm
                       ? ", by the closed form: too many passes to simulate"
                       : ", the best simulated",
                   ", ", FormatSeconds(plan.search_seconds));
  if (plan.optimality_gap == 0) {
    absl::StrAppend(&text, "; none is faster by the closed form");
  } else if (plan.optimality_gap.has_value()) {
    absl::StrAppend(&text, "; none is more than ",
                    Percent(*plan.optimality_gap),
                    " faster by the closed form");
  }
  return text;
}

std::string CalibrationText(const HardwareProfile& profile) {
  const std::vector<LearntRun>& runs = profile.learnt_runs;
  if (runs.empty()) return "";
  return absl::StrCat("calibrated by ",
                      runs.size() < kRunsKept ? "" : "the last ", runs.size(),
                      runs.size() == 1 ? " run" : " runs", ", the last ",
                      runs.back().run, " on ", runs.back().date,
                      ": it predicted ", FormatSeconds(runs.back().predicted_s),
                      ", measured ", FormatSeconds(runs.back().measured_s));
}

// Says which measurements the figures rest on and how the plan was found.
std::string Basis(const HardwareProfile& profile, const Plan& plan) {
  return absl::StrCat(
      NamedLine(
          "profile",
          absl::StrCat(
              profile.name,
              IsMeasured(profile) ? ", measured on " : ", from data sheets: ",
              profile.provenance.description, ", ", profile.provenance.date)),
      NamedLine("", CalibrationText(profile)),
      NamedLine("search", SearchText(plan)));
}

// One line for the largest parts of the step and one for the next lever.
std::string Advice(const HardwareProfile& profile, const Plan& plan,
                   const PlanAnswers& answers) {
  constexpr size_t kRoom = kPageColumns - kColumn;
  return absl::StrCat(
      answers.parts.has_value()
          ? NamedLine("what binds",
                      BriefBindingText(*answers.parts, plan, profile, kRoom))
          : "",
      answers.next_step.empty()
          ? ""
          : NamedLine("next lever",
                      BriefLeverText(plan, answers.next_step, kRoom)));
}

// Shows how disturbances, failures and prices change the plan's yield.
std::string OverWeeks(const PlanAnswers& answers) {
  std::string text;
  if (answers.disturbed.has_value()) {
    const char* name = "disturbed";
    for (const std::string& line : DisturbanceLines(*answers.disturbed)) {
      absl::StrAppend(&text, NamedLine(std::exchange(name, ""), line));
    }
  }
  if (answers.goodput.has_value()) {
    absl::StrAppend(&text, NamedLine("goodput", GoodputText(*answers.goodput)));
  }
  return text;
}

// One figure before and after, and how much it changed.
std::string ChangeRow(absl::string_view name, double before, double after,
                      std::string (*format)(double)) {
  std::string change;
  if (before > 0 && after != before) {
    change = absl::StrFormat("%+.1f %%", 100 * (after / before - 1));
  }
  return absl::StrFormat("  %-22s %12s %12s  %s\n", name, format(before),
                         format(after), change);
}

std::string WhatIfText(const Plan& plan, const PlanAnswers& answers) {
  if (!answers.before.has_value()) return "";
  const Plan& old = *answers.before;
  const Prediction& before = old.prediction;
  const Prediction& after = plan.prediction;
  const auto bytes = [](double count) {
    return FormatBytes(static_cast<int64_t>(count));
  };
  const auto count = [](double number) { return FormatCount(number); };
  const std::string changes = absl::StrJoin(
      answers.changes, ", ", [](std::string* out, const ValueChange& change) {
        absl::StrAppend(out, change.key, " ", change.before, " -> ",
                        change.after);
      });
  std::string text = absl::StrCat(
      "\n", WrapLine(absl::StrCat("  what if ", changes), 10),
      "\n  layout before  ", NameOf(old), "\n  layout after   ",
      NameOf(plan) == NameOf(old) ? "the same" : NameOf(plan),
      absl::StrFormat("\n\n  %-22s %12s %12s  %s\n", "", "before", "after",
                      "change"),
      ChangeRow("step time", before.step_time_s, after.step_time_s,
                FormatStepTime),
      ChangeRow("tokens/s", before.tokens_per_s, after.tokens_per_s, count),
      ChangeRow("tokens/s a device",
                before.tokens_per_s / old.layout.num_ranks(),
                after.tokens_per_s / plan.layout.num_ranks(), count),
      ChangeRow("memory a rank", static_cast<double>(before.memory_bytes()),
                static_cast<double>(after.memory_bytes()), bytes),
      ChangeRow("bubble", before.bubble_fraction, after.bubble_fraction,
                Percent),
      ChangeRow("exposed communication", before.exposed_communication_fraction,
                after.exposed_communication_fraction, Percent));
  return text;
}

std::string Answers(const Plan& plan, const PlanAnswers& answers) {
  std::string text = WhatIfText(plan, answers);
  if (!answers.comparisons.empty() && answers.parts.has_value()) {
    absl::StrAppend(
        &text, ComparisonsTable(plan, *answers.parts, answers.comparisons));
  }
  if (!answers.sensitivity.empty()) {
    absl::StrAppend(&text, SensitivityTable(plan, answers.sensitivity));
  }
  if (answers.lost_nodes.has_value()) {
    absl::StrAppend(&text, LostNodesTable(*answers.lost_nodes));
  }
  return text;
}

std::string SkippedNeighbours(const Plan& plan) {
  const bool prices_many =
      plan.layouts_considered > kSearchBudget.most_priced_for_neighbours;
  return NamedLine(
      "skipped",
      absl::StrCat(
          "neighbouring layouts (15 more searches; automatic up to ",
          prices_many ? kSearchBudget.most_priced_for_neighbours
                      : kSearchBudget.most_listed_for_neighbours,
          prices_many ? " layouts" : " list-scheduled passes", ", here ",
          prices_many ? plan.layouts_considered : NumListedPasses(plan),
          "). Ask for one with --compare."));
}

// Says which job and devices the plan is for.
std::string Head(const JobSpec& job, const HardwareProfile& profile,
                 const Plan& plan, const PlanAnswers& answers) {
  const int32_t num_devices = plan.layout.num_ranks();
  std::string text = absl::StrCat(
      WrapLine(absl::StrCat("Plan for ", job.name, ": ",
                            FormatCount(static_cast<double>(
                                CountParameters(job.model).total)),
                            " parameters on ", num_devices,
                            num_devices == 1 ? " device" : " devices", " (",
                            profile.name, "), ", job.training.global_batch,
                            " sequences of ", job.model.sequence_length,
                            " tokens a step, ", PrecisionName(plan.layout)),
               2),
      "\n");
  if (!answers.devices_from.empty()) {
    absl::StrAppend(&text,
                    WrapLine(absl::StrCat("Planned for ", answers.devices_from,
                                          "; change that with --devices"),
                             2),
                    "\n");
  }
  return text;
}

std::string Warnings(const Plan& plan) {
  std::string text = plan.warnings.empty() ? "" : "\n";
  for (const std::string& warning : plan.warnings) {
    absl::StrAppend(&text, WrapLine(absl::StrCat("warning: ", warning), 2),
                    "\n");
  }
  return text;
}

// The summary, with `details` after the part that everyone sees.
std::string Text(const JobSpec& job, const HardwareProfile& profile,
                 const Plan& plan, const PlanAnswers& answers,
                 const std::string& details) {
  const std::string advice = absl::StrCat(
      PlanNotes(plan), Advice(profile, plan, answers), OverWeeks(answers));
  return absl::StrCat(Head(job, profile, plan, answers), "\n", PlanTable(plan),
                      advice.empty() ? "" : "\n", advice, details,
                      Answers(plan, answers), Warnings(plan));
}

}  // namespace

std::string SummarizePlan(const JobSpec& job, const HardwareProfile& profile,
                          const Plan& plan, const PlanAnswers& answers) {
  return Text(job, profile, plan, answers, "");
}

std::string ExplainPlan(const JobSpec& job, const HardwareProfile& profile,
                        const Plan& plan, const PlanAnswers& answers) {
  const std::string reasons = ReasonsInFull(plan);
  return Text(
      job, profile, plan, answers,
      absl::StrCat("\n", Choice(job, profile, plan, answers),
                   Basis(profile, plan),
                   answers.leaves_out_neighbours ? SkippedNeighbours(plan) : "",
                   reasons.empty() ? "" : "\n", reasons));
}

}  // namespace millrace
