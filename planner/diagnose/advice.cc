#include "planner/diagnose/advice.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "planner/search/search.h"

namespace millrace {
namespace {

// Predictions that are further off are marked as such.
constexpr double kGoodPrediction = 0.25;

// Returns the product of the job's pinned axes; nothing if one is open.
std::optional<int64_t> PinnedDevices(const LayoutConstraints& layout) {
  if (!layout.pipeline || !layout.data || !layout.tensor) return std::nullopt;
  return int64_t{*layout.pipeline} * *layout.data * *layout.tensor *
         layout.context.value_or(1);
}

absl::StatusOr<int32_t> NumDevices(const Trace& trace,
                                   const LayoutConstraints& layout,
                                   int32_t asked) {
  std::vector<std::pair<std::string, int64_t>> said;
  if (asked > 0) said.emplace_back("--devices", asked);
  if (trace.world_size.has_value()) {
    said.emplace_back("the trace's world size", *trace.world_size);
  }
  if (const auto pinned = PinnedDevices(layout)) {
    said.emplace_back("the product of the job's layout axes", *pinned);
  }
  if (said.empty()) {
    return absl::InvalidArgumentError(
        "how many devices the step ran on is said neither by the trace nor by "
        "the job's layout section; give --devices N");
  }
  for (const auto& [source, number] : said) {
    if (number < 1 || number > std::numeric_limits<int32_t>::max()) {
      return absl::InvalidArgumentError(absl::StrCat(
          source, " is ", number,
          "; expected a number of devices; mend it, or leave it out"));
    }
    if (number == said.front().second) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        said.front().first, " is ", said.front().second, ", but ", source,
        " is ", number,
        "; the job's layout section must be the one that was recorded"));
  }
  return static_cast<int32_t>(said.front().second);
}

absl::StatusOr<double> MeasuredSeconds(const Diagnosis& diagnosis) {
  for (const RecordedStep& step : diagnosis.steps) {
    if (diagnosis.step == step.step) {
      return static_cast<double>(step.length_ns) * 1e-9;
    }
  }
  return absl::InvalidArgumentError(
      "the planner's advice is about one step, and this diagnosis is of all "
      "that was recorded; call profiler.step() once a training step, and leave "
      "out --whole");
}

std::vector<std::string> ChangesOf(const Layout& from, const Layout& to) {
  std::vector<std::string> changes;
  const auto add = [&](const char* name, int32_t before, int32_t after) {
    if (before == after) return;
    changes.push_back(absl::StrCat(name, " ", before, " to ", after));
  };
  for (const LayoutSize& row : LayoutSizes()) {
    add(row.name, from.*row.size, to.*row.size);
  }
  add("zero", from.zero, to.zero);
  const std::pair<const char*, std::pair<std::string, std::string>> names[] = {
      {"recompute", {RecomputeKey(from), RecomputeKey(to)}},
      {"schedule", {ScheduleName(from.schedule), ScheduleName(to.schedule)}},
      {"precision", {PrecisionName(from), PrecisionName(to)}}};
  for (const auto& [name, values] : names) {
    if (values.first == values.second) continue;
    changes.push_back(
        absl::StrCat(name, " ", values.first, " to ", values.second));
  }
  return changes;
}

// Whether the profile describes the recorded device: it must contain a word of
// the device's name that has letters and digits, such as H100.
bool IsOfDevice(const std::string& device, const HardwareProfile& profile) {
  const std::string known =
      absl::AsciiStrToLower(absl::StrCat(profile.name, " ", profile.device.name,
                                         " ", profile.provenance.description));
  for (const absl::string_view word :
       absl::StrSplit(device, absl::ByAnyChar(" -_"), absl::SkipEmpty())) {
    const bool has_letter = std::ranges::any_of(word, absl::ascii_isalpha);
    const bool has_digit = std::ranges::any_of(word, absl::ascii_isdigit);
    const bool is_size = absl::EndsWithIgnoreCase(word, "gb");
    if (has_letter && has_digit && !is_size) {
      return absl::StrContains(known, absl::AsciiStrToLower(word));
    }
  }
  return true;  // A name without a model contradicts no profile.
}

void NoteOpenKeys(const LayoutConstraints& layout, Advice& advice) {
  const std::pair<const char*, bool> keys[] = {
      {"pipeline", layout.pipeline.has_value()},
      {"data", layout.data.has_value()},
      {"tensor", layout.tensor.has_value()},
      {"micro_batch", layout.micro_batch.has_value()},
      {"zero", layout.zero.has_value()},
      {"recompute", layout.recompute != "auto"}};
  std::vector<std::string> open;
  for (const auto& [name, pinned] : keys) {
    if (!pinned) open.push_back(absl::StrCat("layout.", name));
  }
  if (open.empty()) return;
  advice.caveats.push_back(absl::StrCat(
      "the job leaves ", absl::StrJoin(open, ", "),
      " open; what is called recorded has the planner's choice there, which "
      "may not be what ran"));
}

void NoteCaveats(const Trace& trace, const Diagnosis& diagnosis,
                 const JobSpec& job, const HardwareProfile& profile,
                 Advice& advice) {
  advice.caveats.push_back(
      "model, batch and layout are the job's: the trace cannot confirm them; a "
      "recorded step must be one whole optimizer step");
  NoteOpenKeys(job.layout, advice);
  const size_t num_recorded = diagnosis.devices.size();
  if (static_cast<size_t>(advice.num_devices) > num_recorded) {
    advice.caveats.push_back(absl::StrCat(
        "of ", advice.num_devices, " devices ", num_recorded,
        num_recorded == 1 ? " was" : " were",
        " recorded; waiting for slower ranks counts as communication there"));
  }
  for (const auto& [unused, name] : trace.device_names) {
    if (IsOfDevice(name, profile)) continue;
    advice.caveats.push_back(absl::StrCat("the step ran on ", name,
                                          ", the profile is ", profile.name));
    break;
  }
  if (std::abs(advice.shortfall() - 1) > kGoodPrediction) {
    advice.caveats.push_back(absl::StrCat(
        "the recorded step takes ", absl::StrFormat("%.3g", advice.shortfall()),
        " times what is predicted of its layout: ",
        advice.fits_trace() ? "the gain is as uncertain"
                            : "job or profile are not those of the trace"));
  }
}

}  // namespace

LayoutShare LayoutShareOf(const Diagnosis& diagnosis) {
  const DeviceTime& total = diagnosis.total;
  return {
      .exposed_communication_ns = total.split.exposed_communication_ns,
      .waiting_ns =
          total.gaps_by_cause[static_cast<size_t>(GapCause::kQueued)].idle_ns,
      .window_ns = total.split.window_ns};
}

absl::StatusOr<Advice> Advise(const Trace& trace, const Diagnosis& diagnosis,
                              const JobSpec& job, int32_t num_devices,
                              const CostModel& cost) {
  Advice advice{.profile = cost.profile().name};
  ASSIGN_OR_RETURN(advice.measured_s, MeasuredSeconds(diagnosis));
  ASSIGN_OR_RETURN(advice.num_devices,
                   NumDevices(trace, job.layout, num_devices));
  // Both layouts must be priced by one model.
  const HardwareProfile& profile = cost.profile();
  SearchInput input{
      .job = job,
      .num_devices = advice.num_devices,
      .allows_plan_only =
          IsPlanOnPaper(job, advice.num_devices, profile) ||
          (profile.device.is_given() && !profile.network.empty())};
  ASSIGN_OR_RETURN(const Plan recorded, FindPlan(input, cost));
  input.job.layout = {.devices = advice.num_devices};
  ASSIGN_OR_RETURN(const Plan best, FindPlan(input, cost));
  advice.recorded = {recorded.layout, recorded.prediction};
  advice.best = {best.layout, best.prediction};
  // A search that ends early may miss the job's own layout.
  if (advice.speedup() < 1) advice.best = advice.recorded;
  advice.changes = ChangesOf(advice.recorded.layout, advice.best.layout);
  NoteCaveats(trace, diagnosis, job, profile, advice);
  return advice;
}

}  // namespace millrace
