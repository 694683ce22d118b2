#include "planner/explain/sensitivity.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "planner/explain/layout_name.h"
#include "planner/job/layout_space.h"
#include "planner/search/prediction.h"
#include "planner/search/program_prediction.h"

namespace millrace {
namespace {

constexpr char kMemoryKey[] = "device.memory";
constexpr double kNextStep = 1.25;
constexpr double kFactors[] = {kNextStep, 2};
// Smaller savings do not justify buying hardware, so they are not shown.
constexpr double kShownSaving = 1e-3;

// Returns `planned` with one figure of its hardware improved.
absl::StatusOr<PlanningCase> Improved(const PlanningCase& planned,
                                      const std::string& key, double factor) {
  PlanningCase improved = planned;
  if (key == kMemoryKey &&
      improved.job.resources.memory_per_device_bytes.has_value()) {
    // The job's own limit decides how much memory is used, so it grows.
    int64_t& limit = *improved.job.resources.memory_per_device_bytes;
    limit = std::llround(static_cast<double>(limit) * factor);
    return improved;
  }
  const std::string setting = absl::StrCat(key, "=", factor, "x");
  const ProfileLoader no_profiles = [](const std::string& name) {
    return absl::StatusOr<HardwareProfile>(
        absl::InternalError(absl::StrCat("profile ", name, " is not needed")));
  };
  absl::StatusOr<std::vector<ValueChange>> applied =
      ApplyWhatIf({&setting, 1}, no_profiles, &improved);
  if (!applied.ok()) return applied.status();
  return improved;
}

absl::StatusOr<SensitivityRow> FindRow(const PlanningCase& improved,
                                       const std::string& key, double factor,
                                       const Plan& chosen,
                                       const Planner& planner) {
  PlanningCase kept = improved;
  PinLayout(chosen.layout, &kept.job);
  ASSIGN_OR_RETURN(const Plan plan, planner(kept));
  return SensitivityRow{
      .key = key,
      .factor = factor,
      .kept_step_time_s = plan.prediction.step_time_s,
      .best = {},
  };
}

// Returns the seconds of the chosen layout's step on the hardware of
// `improved`.
absl::StatusOr<double> SecondsByInstructions(const PlanningCase& improved,
                                             const Plan& chosen) {
  ASSIGN_OR_RETURN(const CostModel cost, CostModel::Create(improved.profile));
  ASSIGN_OR_RETURN(const Timeline timeline,
                   SimulatePrograms(*chosen.programs, cost));
  return timeline.step_time_s;
}

double Saving(double seconds, const Plan& chosen) {
  return 1 - seconds / chosen.prediction.step_time_s;
}

// Names the best layout that only memory forbids, and how much faster it would
// be.
std::string MemoryText(const Plan& chosen) {
  const Alternative* best = nullptr;
  double most = kShownSaving;
  for (const Alternative& alternative : chosen.alternatives) {
    if (alternative.fits) continue;
    const Prediction& prediction = alternative.prediction;
    const double saving =
        1 - prediction.step_time_s /
                PredictionBy(prediction.model, chosen)->step_time_s;
    if (saving < most) continue;
    best = &alternative;
    most = saving;
  }
  if (best == nullptr) return "";
  return absl::StrFormat("; memory for %s saves %.1f %% by the closed form",
                         LayoutName(best->layout), 100 * most);
}

constexpr char kNoLever[] = "no part of the hardware alone saves time";

// Returns the rows that save time, most first.
std::vector<const SensitivityRow*> Levers(
    const Plan& chosen, const std::vector<SensitivityRow>& rows) {
  std::vector<const SensitivityRow*> levers;
  for (const SensitivityRow& row : rows) {
    // Orders of passes change by chance, so a row that seems to cost time saves
    // none.
    if (Saving(row.kept_step_time_s, chosen) >= kShownSaving) {
      levers.push_back(&row);
    }
  }
  std::ranges::stable_sort(levers, {}, &SensitivityRow::kept_step_time_s);
  return levers;
}

}  // namespace

std::vector<std::string> HardwareKeys(const PlanningCase& planned) {
  std::vector<std::string> keys = {"device.flops", "device.memory_bandwidth",
                                   kMemoryKey};
  if (planned.num_devices == 1) return keys;
  int32_t joined = 1;  // Devices that a domain of the level below joins.
  for (const NetworkLevel& level : planned.profile.network) {
    if (joined >= planned.num_devices) break;
    keys.push_back(absl::StrCat("link.", level.name));
    joined = level.devices > 0 ? level.devices : planned.num_devices;
  }
  if (planned.profile.network.empty()) keys.emplace_back("link.all");
  return keys;
}

absl::StatusOr<std::vector<SensitivityRow>> FindSensitivity(
    const PlanningCase& planned, const Plan& chosen, const Planner& planner) {
  std::vector<SensitivityRow> rows;
  for (const std::string& key : HardwareKeys(planned)) {
    for (const double factor : kFactors) {
      ASSIGN_OR_RETURN(const PlanningCase improved,
                       Improved(planned, key, factor));
      ASSIGN_OR_RETURN(SensitivityRow row,
                       FindRow(improved, key, factor, chosen, planner));
      ASSIGN_OR_RETURN(const Plan best, planner(improved));
      // A search that proves nothing may miss the chosen layout itself.
      const bool is_better = best.prediction.step_time_s < row.kept_step_time_s;
      row.best = is_better ? best.layout : chosen.layout;
      row.best_step_time_s =
          is_better ? best.prediction.step_time_s : row.kept_step_time_s;
      row.best_changes = row.best != chosen.layout;
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

absl::StatusOr<std::vector<SensitivityRow>> FindNextStep(
    const PlanningCase& planned, const Plan& chosen, const Planner& planner) {
  std::vector<SensitivityRow> rows;
  for (const std::string& key : HardwareKeys(planned)) {
    // The kept layout does not use more memory.
    if (key == kMemoryKey) continue;
    ASSIGN_OR_RETURN(const PlanningCase improved,
                     Improved(planned, key, kNextStep));
    if (chosen.programs == nullptr) {
      ASSIGN_OR_RETURN(SensitivityRow row,
                       FindRow(improved, key, kNextStep, chosen, planner));
      rows.push_back(std::move(row));
      continue;
    }
    ASSIGN_OR_RETURN(const double improved_s,
                     SecondsByInstructions(improved, chosen));
    rows.push_back(
        {.key = key,
         .factor = kNextStep,
         .kept_step_time_s = chosen.prediction.step_time_s * improved_s /
                             chosen.timeline.step_time_s,
         .best = {}});
  }
  return rows;
}

std::string SensitivityTable(const Plan& chosen,
                             const std::vector<SensitivityRow>& rows) {
  std::string text = absl::StrFormat(
      "\n  %-29s %10s %7s %10s %7s  %s\n", "with better hardware", "this plan",
      "saves", "best plan", "saves", "best layout");
  for (const SensitivityRow& row : rows) {
    const std::string cells =
        absl::StrFormat("  %-29s %10s %6.1f%% %10s %6.1f%%  ",
                        absl::StrCat(row.key, "=", row.factor, "x"),
                        FormatStepTime(row.kept_step_time_s),
                        100 * Saving(row.kept_step_time_s, chosen),
                        FormatStepTime(row.best_step_time_s),
                        100 * Saving(row.best_step_time_s, chosen));
    absl::StrAppend(&text,
                    RowWithName(cells, row.best_changes ? LayoutName(row.best)
                                                        : "the same"),
                    "\n");
  }
  return text;
}

std::string BriefLeverText(const Plan& chosen,
                           const std::vector<SensitivityRow>& rows,
                           size_t columns) {
  std::string text;
  for (const SensitivityRow* row : Levers(chosen, rows)) {
    const std::string more = absl::StrFormat(
        "%s%s +%.0f %% saves %.1f %%%s", text.empty() ? "" : ", ", row->key,
        100 * (row->factor - 1), 100 * Saving(row->kept_step_time_s, chosen),
        text.empty() ? " of the step" : "");
    if (text.size() + more.size() > columns) break;
    text += more;
  }
  return text.empty() ? kNoLever : text;
}

std::string NextStepText(const Plan& chosen,
                         const std::vector<SensitivityRow>& rows) {
  std::vector<std::string> texts;
  for (const SensitivityRow* row : Levers(chosen, rows)) {
    const double saving = Saving(row->kept_step_time_s, chosen);
    texts.push_back(
        texts.empty() ? absl::StrFormat("%s +%.0f %% saves %.1f %%", row->key,
                                        100 * (row->factor - 1), 100 * saving)
                      : absl::StrFormat("%s %.1f %%", row->key, 100 * saving));
  }
  return absl::StrCat(texts.empty() ? kNoLever : absl::StrJoin(texts, ", "),
                      MemoryText(chosen));
}

}  // namespace millrace
