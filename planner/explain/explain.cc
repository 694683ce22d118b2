#include "planner/explain/explain.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/units.h"
#include "planner/explain/explain_disturbance.h"
#include "planner/explain/explain_goodput.h"
#include "planner/explain/explain_neighbours.h"
#include "planner/profile/learnt_history.h"
#include "planner/search/prediction.h"
#include "planner/search/search_budget.h"

namespace millrace {
namespace {

// More rows than these tell a reader nothing new.
constexpr size_t kShownAlternatives = 10;
// Where the text of a named line starts.
constexpr int kColumn = 13;

std::string Percent(double fraction) {
  return absl::StrFormat("%.1f %%", 100 * fraction);
}

std::string MemoryText(const Prediction& prediction) {
  const int64_t other = prediction.overhead_bytes +
                        prediction.persistent_bytes -
                        prediction.parameter_bytes - prediction.gradient_bytes -
                        prediction.optimizer_bytes;
  return absl::StrCat(
      FormatBytes(prediction.memory_bytes()), " a rank at most: parameters ",
      FormatBytes(prediction.parameter_bytes), ", gradients ",
      FormatBytes(prediction.gradient_bytes), ", optimizer ",
      FormatBytes(prediction.optimizer_bytes), ", step ",
      FormatBytes(prediction.step_bytes),
      other >= kMiB ? absl::StrCat(", other ", FormatBytes(other)) : "");
}

std::string LayoutText(const Alternative& alternative) {
  return absl::StrCat(
      LayoutToString(alternative.layout),
      alternative.listed_bytes.empty() ? "" : ", passes listed");
}

std::string AlternativeRow(int width, const Alternative& alternative) {
  const Prediction& prediction = alternative.prediction;
  const std::string memory = prediction.memory_bytes() > 0
                                 ? FormatBytes(prediction.memory_bytes())
                                 : "-";
  return absl::StrFormat(
      "  %-*s %10s %10s  %s\n", width, LayoutText(alternative),
      FormatStepTime(prediction.step_time_s), memory, alternative.reason);
}

// "norm, 64.0 MiB for 0.05 ms".
std::string PriceText(const RecomputeCandidate& price) {
  return absl::StrCat(RecomputeName(price.op), ", ",
                      FormatBytes(static_cast<int64_t>(price.bytes)), " for ",
                      FormatSeconds(price.seconds));
}

// What is computed again, what it saves and takes, and what would be next.
std::string RecomputeText(const Plan& plan) {
  const Recompute set = plan.layout.recompute;
  if (set == Recompute::kNone) return "";
  const std::string what = set == Recompute::kFull
                               ? "all layers from their inputs"
                               : RecomputeName(set);
  std::string text = absl::StrCat(
      "  recompute  ",
      plan.layout.recompute_by_stage.empty()
          ? what
          : absl::StrCat("by stage, the least with which each fits, at most ",
                         what),
      ", ", Percent(plan.prediction.recompute_fraction),
      " of the step, for memory\n");
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
  return absl::StrCat(text, std::string(kColumn, ' '),
                      "saves of each layer and micro-batch: ",
                      absl::StrJoin(prices, "; "), next, "\n");
}

// "1.20 s (1.10 s to 1.35 s)".
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

// What the job leaves no choice of.
std::string PinnedText(const JobSpec& job) {
  const std::vector<const JobKey*> keys = PinnedKeys(job);
  if (keys.empty()) return "";
  return absl::StrCat("  pinned     by the job: ", PinsText(keys, job), "\n");
}

std::string PlanOnlyText(const Plan& plan) {
  return absl::StrCat(
      plan.plan_only
          ? absl::StrCat("  plan only  no worker can execute "
                         "this layout or model yet; the "
                         "prediction is by ",
                         plan.simulated ? "passes" : "the closed form",
                         plan.by_passes.has_value()
                             ? ", on the scale of instructions"
                             : "",
                         "\n")
          : "",
      plan.pipeline_outermost
          ? "  placement  innermost first: tensor, context, "
            "data, pipeline\n"
          : "",
      plan.listed_bytes.empty() ? ""
                                : "  order      passes as list scheduling "
                                  "orders them by their costs, "
                                  "within memory\n",
      plan.num_idle_devices > 0
          ? absl::StrCat("  devices    ", plan.num_idle_devices,
                         " are left idle\n")
          : "");
}

std::string Choice(const JobSpec& job, const HardwareProfile& profile,
                   const Plan& plan) {
  const Prediction& prediction = plan.prediction;
  const double training_s =
      prediction.step_time_s * static_cast<double>(job.training.num_steps);
  return absl::StrCat(
      "  layout     ", LayoutToString(plan.layout),
      plan.layout.tensor > 1 ? ", sequence-parallel" : "", "\n",
      PinnedText(job), PlanOnlyText(plan), "  step time  ",
      StepTimeText(prediction), ", ", FormatCount(prediction.tokens_per_s),
      " tokens/s, ", Percent(prediction.mfu_causal),
      IsMeasured(profile) ? " of what each rank's best GEMM alone reaches"
                          : " of the bf16 FLOP/s that the data sheet says",
      "\n", "  training   ", FormatSeconds(training_s), " for ",
      job.training.num_steps, " steps, without start and checkpoints\n",
      "  memory     ", MemoryText(prediction), "\n", "  idle       bubble ",
      Percent(prediction.bubble_fraction),
      " of the step, exposed communication ",
      Percent(prediction.exposed_communication_fraction), "\n",
      RecomputeText(plan));
}

std::string SearchText(const Plan& plan) {
  std::string text = absl::StrCat(
      plan.layouts_considered,
      plan.layouts_considered == 1 ? " layout" : " layouts",
      plan.all_simulated ? ", all that fit simulated"
      : plan.simulated   ? ", the best simulated"
                         : ", by the closed form: too many passes to simulate",
      ", ", FormatSeconds(plan.search_seconds));
  // By the model that chose what to simulate.
  const char* model = plan.all_simulated ? "" : " by the closed form";
  if (plan.optimality_gap == 0) {
    absl::StrAppend(&text, "; none is faster", model);
  } else if (plan.optimality_gap.has_value()) {
    absl::StrAppend(&text, "; none is more than ",
                    Percent(*plan.optimality_gap), " faster", model);
  }
  return text;
}

std::string CalibrationText(const HardwareProfile& profile) {
  const std::vector<CalibrationRun>& runs = profile.calibration_runs;
  if (runs.empty()) return "";
  return absl::StrCat("\n             calibrated by ",
                      runs.size() < kRunsKept ? "" : "the last ", runs.size(),
                      runs.size() == 1 ? " run" : " runs", ", the last ",
                      runs.back().run, " on ", runs.back().date,
                      ": it predicted ", FormatSeconds(runs.back().predicted_s),
                      ", measured ", FormatSeconds(runs.back().measured_s));
}

std::string Basis(const HardwareProfile& profile, const Plan& plan) {
  return absl::StrCat(
      "  profile    ", profile.name,
      IsMeasured(profile)
          ? absl::StrCat(", measured on ", profile.provenance.description)
          : absl::StrCat(", from data sheets: ",
                         profile.provenance.description),
      ", ", profile.provenance.date, CalibrationText(profile), "\n",
      "  search     ", SearchText(plan), "\n");
}

std::string Binding(const HardwareProfile& profile, const Plan& plan,
                    const PlanAnswers& answers) {
  std::string text;
  if (answers.parts.has_value()) {
    absl::StrAppend(&text, "  binds      ",
                    BindingText(*answers.parts, plan, profile), "\n");
  }
  if (!answers.next_step.empty()) {
    absl::StrAppend(&text, "  next step  ",
                    NextStepText(plan, answers.next_step), "\n");
  }
  if (answers.disturbed.has_value()) {
    absl::StrAppend(&text, "  disturbed  ",
                    DisturbanceText(*answers.disturbed, kColumn), "\n");
  }
  if (answers.goodput.has_value()) {
    absl::StrAppend(&text, "  goodput    ", GoodputText(*answers.goodput),
                    "\n");
  }
  return text;
}

// One figure of two plans, and by how much it changed.
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
  std::string text = absl::StrCat(
      "\n  what if ",
      absl::StrJoin(answers.changes, ", ",
                    [](std::string* out, const ValueChange& change) {
                      absl::StrAppend(out, change.key, " ", change.before,
                                      " -> ", change.after);
                    }),
      "\n  layout before  ", LayoutToString(old.layout), "\n  layout after   ",
      plan.layout == old.layout ? "the same" : LayoutToString(plan.layout),
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

// The first ones, of those that differ in chunks alone the first.
std::vector<const Alternative*> ShownAlternatives(const Plan& plan) {
  std::vector<const Alternative*> shown;
  for (const Alternative& alternative : plan.alternatives) {
    const bool is_twin =
        DifferInChunksOnly(alternative.layout, plan.layout) ||
        std::any_of(shown.begin(), shown.end(), [&](const Alternative* other) {
          return DifferInChunksOnly(alternative.layout, other->layout);
        });
    if (!is_twin && shown.size() < kShownAlternatives) {
      shown.push_back(&alternative);
    }
  }
  return shown;
}

std::string AlternativesTable(const Plan& plan) {
  const std::vector<const Alternative*> shown = ShownAlternatives(plan);
  if (plan.alternatives.empty()) return "";
  size_t width = 0;
  for (const Alternative* alternative : shown) {
    width = std::max(width, LayoutText(*alternative).size());
  }
  const int columns = static_cast<int>(width);
  std::string text;
  if (!shown.empty()) {
    text = absl::StrFormat("\n  %-*s %10s %10s  %s\n", columns, "alternative",
                           "step time", "memory", "why not");
  }
  for (const Alternative* alternative : shown) {
    absl::StrAppend(&text, AlternativeRow(columns, *alternative));
  }
  if (shown.size() < plan.alternatives.size()) {
    absl::StrAppend(&text, "  and ", plan.alternatives.size() - shown.size(),
                    " more; --json lists them all\n");
  }
  return text;
}

std::string LeftOutText(const Plan& plan) {
  const bool prices_many =
      plan.layouts_considered > kSearchBudget.most_priced_for_neighbours;
  return absl::StrCat(
      "\n  left out: what other sizes of each axis and micro-batch, other "
      "ZeRO, "
      "recompute and schedule cost, which takes fifteen more searches and is "
      "looked for where one ",
      prices_many ? "prices" : "orders", " at most ",
      prices_many ? kSearchBudget.most_priced_for_neighbours
                  : kSearchBudget.most_listed_for_neighbours,
      prices_many ? " layouts" : " passes", ", not ",
      prices_many ? plan.layouts_considered : NumListedPasses(plan),
      "; ask for one with --compare\n");
}

}  // namespace

std::string ExplainPlan(const JobSpec& job, const HardwareProfile& profile,
                        const Plan& plan, const PlanAnswers& answers) {
  const int32_t num_devices = plan.layout.num_ranks();
  return absl::StrCat(
      "Plan for ", job.name, ": ",
      FormatCount(static_cast<double>(CountParameters(job.model).total)),
      " parameters on ", num_devices, num_devices == 1 ? " device" : " devices",
      ", ", job.training.global_batch, " sequences of ",
      job.model.sequence_length, " tokens a step\n",
      answers.devices_from.empty()
          ? ""
          : absl::StrCat("Planned for ", answers.devices_from,
                         "; --devices says otherwise\n"),
      "\n", Choice(job, profile, plan), Binding(profile, plan, answers),
      Basis(profile, plan), AlternativesTable(plan),
      answers.leaves_out_neighbours ? LeftOutText(plan) : "",
      Answers(plan, answers),
      absl::StrJoin(plan.warnings, "",
                    [](std::string* out, const std::string& warning) {
                      absl::StrAppend(out, "\nwarning: ", warning, "\n");
                    }));
}

}  // namespace millrace
