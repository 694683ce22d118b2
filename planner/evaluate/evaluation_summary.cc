#include "planner/evaluate/evaluation_summary.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/statistics.h"
#include "planner/profile/prediction_interval.h"

namespace millrace {
namespace {

// Collects errors under names, in the order in which names appear.
class ErrorGroups {
 public:
  void Add(const std::string& name, const RunPrediction& prediction) {
    const auto [found, is_new] = index_.emplace(name, groups_.size());
    if (is_new) {
      groups_.push_back({.name = name});
      errors_.emplace_back();
    }
    ErrorSummary& group = groups_[found->second];
    ++group.count;
    if (!prediction.is_supported()) return;
    ++group.supported;
    const std::optional<double> error = prediction.step_time_error();
    if (error && !prediction.is_calibration) {
      errors_[found->second].push_back(*error);
    }
  }

  std::vector<ErrorSummary> Finish() {
    for (size_t i = 0; i < groups_.size(); ++i) {
      const std::vector<double>& errors = errors_[i];
      if (errors.empty()) continue;
      std::vector<double> sizes;
      for (const double error : errors) sizes.push_back(std::fabs(error));
      groups_[i].compared = static_cast<int>(errors.size());
      groups_[i].median = Quantile(sizes, 0.5);
      groups_[i].p95 = Quantile(sizes, 0.95);
      groups_[i].mean_signed =
          std::accumulate(errors.begin(), errors.end(), 0.0) /
          static_cast<double>(errors.size());
    }
    return std::move(groups_);
  }

 private:
  std::map<std::string, size_t> index_;
  std::vector<ErrorSummary> groups_;
  std::vector<std::vector<double>> errors_;
};

std::vector<std::string> ClassesOf(const RunPrediction& prediction) {
  if (!prediction.is_supported()) return {};
  std::vector<std::string> classes;
  const bool has_experts = prediction.setup.model.moe.num_experts > 0;
  const std::string& quality = prediction.run.quality;
  if (has_experts) {
    classes.push_back("experts");
  } else if (quality == "A" || quality == "A+") {
    classes.push_back("dense A/A+");
  }
  classes.push_back(prediction.setup.layout.gemm_format == GemmFormat::kAsStored
                        ? "bf16/fp16"
                        : "fp8/fp4");
  if (prediction.is_calibrated) classes.push_back("calibrated");
  return classes;
}

std::string ChoiceName(const RunPrediction& prediction) {
  const PublishedRun& run = prediction.run;
  return absl::StrCat(run.group, ", ", run.model, ", ",
                      run.num_gpus.value_or(0), " x ", prediction.setup.profile,
                      ", ", run.precision, ", ", run.global_batch.value_or(0),
                      " x ", run.sequence.value_or(0), " tokens");
}

std::vector<ChoiceSummary> SummarizeChoices(
    const std::vector<RunPrediction>& predictions) {
  struct Times {
    std::vector<double> predicted, measured;
  };
  std::map<std::string, Times> groups;
  for (const RunPrediction& prediction : predictions) {
    const std::optional<double> measured = MeasuredStepTime(prediction.run);
    if (!prediction.is_supported() || !measured) continue;
    // Runs of another software version form a group of their own, since they
    // measure the same layouts again.
    Times& times = groups[absl::StrCat(ChoiceName(prediction), "\n",
                                       SoftwareOf(prediction.run))];
    times.predicted.push_back(prediction.step_time_s);
    times.measured.push_back(*measured);
  }
  std::vector<ChoiceSummary> choices;
  for (const auto& [name, times] : groups) {
    if (times.measured.size() < 2) continue;
    const auto first = static_cast<size_t>(
        std::ranges::min_element(times.predicted) - times.predicted.begin());
    const double best = std::ranges::min(times.measured);
    choices.push_back({.name = name.substr(0, name.find('\n')),
                       .count = static_cast<int>(times.measured.size()),
                       .regret = times.measured[first] / best - 1,
                       .spearman = Spearman(times.predicted, times.measured)});
  }
  return choices;
}

// Ranks count from 1; equal values share their mean rank.
std::vector<double> Ranks(const std::vector<double>& values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, {}, [&](size_t i) { return values[i]; });
  std::vector<double> ranks(values.size());
  for (size_t begin = 0; begin < order.size();) {
    size_t end = begin;
    while (end < order.size() && values[order[end]] == values[order[begin]]) {
      ++end;
    }
    const double rank = 0.5 * static_cast<double>(begin + 1 + end);
    for (; begin < end; ++begin) ranks[order[begin]] = rank;
  }
  return ranks;
}

// Measured over predicted of a run that says how far plans are off: of a dense
// model and good quality, and not what a calibration was made with.
std::optional<double> RatioOf(const RunPrediction& prediction) {
  const std::string& quality = prediction.run.quality;
  const bool is_good = quality == "A-" || quality == "A" || quality == "A+";
  if (!prediction.is_supported() || !is_good || prediction.is_calibration ||
      prediction.setup.model.moe.num_experts > 0) {
    return std::nullopt;
  }
  const std::optional<double> error = prediction.step_time_error();
  if (!error.has_value()) return std::nullopt;
  return 1 / (1 + *error);
}

}  // namespace

std::optional<double> Spearman(const std::vector<double>& a,
                               const std::vector<double>& b) {
  CHECK(a.size() == b.size());
  if (a.size() < 3) return std::nullopt;
  const std::vector<double> x = Ranks(a);
  const std::vector<double> y = Ranks(b);
  const double mean = 0.5 * static_cast<double>(a.size() + 1);
  double xx = 0, yy = 0, xy = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    xx += (x[i] - mean) * (x[i] - mean);
    yy += (y[i] - mean) * (y[i] - mean);
    xy += (x[i] - mean) * (y[i] - mean);
  }
  if (xx == 0 || yy == 0) return std::nullopt;
  return xy / std::sqrt(xx * yy);
}

EvaluationSummary Summarize(const std::vector<RunPrediction>& predictions) {
  ErrorGroups all, groups, qualities, classes;
  EvaluationSummary summary;
  double memory_errors = 0;
  for (const RunPrediction& prediction : predictions) {
    all.Add("all", prediction);
    groups.Add(prediction.run.group, prediction);
    qualities.Add(
        prediction.run.quality.empty() ? "not stated" : prediction.run.quality,
        prediction);
    for (const std::string& name : ClassesOf(prediction)) {
      classes.Add(name, prediction);
    }
    if (const std::optional<double> error = prediction.memory_error()) {
      memory_errors += std::fabs(*error);
      ++summary.num_memory;
    }
  }
  const std::vector<ErrorSummary> total = all.Finish();
  if (!total.empty()) summary.all = total.front();
  summary.by_group = groups.Finish();
  summary.by_quality = qualities.Finish();
  std::ranges::sort(summary.by_quality, {}, &ErrorSummary::name);
  summary.by_class = classes.Finish();
  std::ranges::sort(summary.by_class, {}, &ErrorSummary::name);
  if (summary.num_memory > 0) {
    summary.mean_memory_error = memory_errors / summary.num_memory;
  }
  summary.choices = SummarizeChoices(predictions);
  return summary;
}

std::map<std::string, StepError> ErrorsByProfile(
    const std::vector<RunPrediction>& predictions) {
  std::map<std::string, std::vector<double>> ratios;
  for (const RunPrediction& prediction : predictions) {
    const std::optional<double> ratio = RatioOf(prediction);
    if (!ratio.has_value()) continue;
    ratios[prediction.setup.profile].push_back(*ratio);
  }
  std::map<std::string, StepError> errors;
  for (const auto& [profile, of_profile] : ratios) {
    errors[profile] = ErrorOfRuns(
        of_profile, "millrace evaluate: published runs of dense models");
  }
  return errors;
}

}  // namespace millrace
