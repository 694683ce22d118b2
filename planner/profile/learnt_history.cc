#include "planner/profile/learnt_history.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>
#include <utility>
#include <vector>

#include "planner/profile/prediction_interval.h"

namespace millrace {

double GainAfter(int num_runs) {
  constexpr double kGains[] = {0.9, 0.5, 0.4, 0.35};
  constexpr int kLast = static_cast<int>(std::size(kGains)) - 1;
  return kGains[std::clamp(num_runs, 0, kLast)];
}

EvidenceCounts::EvidenceCounts(const HardwareProfile& profile) {
  for (const LearntChange& value : profile.learnt_changes) {
    if (value.num_samples > 0) ++by_value_[value.value];
  }
  // A copy, since VisitRows() gives mutable seconds.
  HardwareProfile rows = profile;
  VisitRows(rows, [&](const OpShape& shape, double&) {
    int& most = by_kind_[KindText(shape)];
    most = std::max(most, Of(ShapeText(shape)));
  });
}

int EvidenceCounts::Of(const std::string& value) const {
  const auto found = by_value_.find(value);
  return found == by_value_.end() ? 0 : found->second;
}

int EvidenceCounts::OfKind(const OpShape& shape) const {
  const auto found = by_kind_.find(KindText(shape));
  return found == by_kind_.end() ? 0 : found->second;
}

void Remember(const LearntRun& run, HardwareProfile* profile) {
  std::vector<LearntRun>& runs = profile->learnt_runs;
  runs.push_back(run);
  if (runs.size() > kRunsKept) runs.erase(runs.begin());
}

void Remember(const LearntChange& value, HardwareProfile* profile) {
  profile->learnt_changes.push_back(value);
}

void ForgetOld(HardwareProfile* profile) {
  struct Kept {
    size_t measured = 0;
    size_t others = 0;
  };
  std::map<std::string, Kept> kept;
  std::vector<LearntChange>& values = profile->learnt_changes;
  std::vector<LearntChange> newest_first;
  for (size_t i = values.size(); i-- > 0;) {
    Kept& of_value = kept[values[i].value];
    const bool is_measured = values[i].num_samples > 0;
    size_t& count = is_measured ? of_value.measured : of_value.others;
    if (++count > (is_measured ? kUpdatesKept : 1)) continue;
    newest_first.push_back(std::move(values[i]));
  }
  values.assign(std::make_move_iterator(newest_first.rbegin()),
                std::make_move_iterator(newest_first.rend()));
}

StepError ErrorOfHistory(const HardwareProfile& profile) {
  constexpr char kSource[] =
      "runs with this profile, each predicted before it was learnt from";
  std::vector<double> ratios;
  std::set<std::string> layouts;
  double log_sum = 0;
  const std::vector<LearntRun>& runs = profile.learnt_runs;
  // Before the first run, the tables had seen no step.
  for (size_t i = runs.size() < kRunsKept ? 1 : 0; i < runs.size(); ++i) {
    if (runs[i].num_slow_ranks > 0) continue;
    ratios.push_back(runs[i].measured_s / runs[i].predicted_s);
    layouts.insert(runs[i].layout);
    log_sum += std::log(ratios.back());
  }
  if (ratios.empty()) return {};
  const double run_noise = NoiseFor(profile).run;
  StepError error = ErrorOfRuns(ratios, kSource, run_noise);
  if (layouts.size() > 1) return error;
  // Runs of one layout tell no more about other layouts than a single run does.
  const double middle = std::exp(log_sum / static_cast<double>(ratios.size()));
  const StepError one =
      ErrorOfRuns(std::vector<double>{middle}, kSource, run_noise);
  error.low = std::min(error.low, one.low);
  error.high = std::max(error.high, one.high);
  return error;
}

}  // namespace millrace
