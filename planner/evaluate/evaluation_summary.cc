#include "planner/evaluate/evaluation_summary.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/check.h"

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
    // Other versions of the software measure a layout again.
    Times& times = groups[absl::StrCat(ChoiceName(prediction), "\n",
                                       SoftwareOf(prediction.run))];
    times.predicted.push_back(prediction.step_time_s);
    times.measured.push_back(*measured);
  }
  std::vector<ChoiceSummary> choices;
  for (const auto& [name, times] : groups) {
    if (times.measured.size() < 2) continue;
    const auto first = static_cast<size_t>(
        std::min_element(times.predicted.begin(), times.predicted.end()) -
        times.predicted.begin());
    const double best =
        *std::min_element(times.measured.begin(), times.measured.end());
    choices.push_back({.name = name.substr(0, name.find('\n')),
                       .count = static_cast<int>(times.measured.size()),
                       .regret = times.measured[first] / best - 1,
                       .spearman = Spearman(times.predicted, times.measured)});
  }
  return choices;
}

// Ranks from 1; equal values share the mean of theirs.
std::vector<double> Ranks(const std::vector<double>& values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return values[a] < values[b]; });
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

}  // namespace

double Quantile(std::vector<double> values, double share) {
  CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  const double position = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(position);
  const size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (position - static_cast<double>(below)) *
                             (values[above] - values[below]);
}

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
  auto by_name = [](const ErrorSummary& a, const ErrorSummary& b) {
    return a.name < b.name;
  };
  summary.by_group = groups.Finish();
  summary.by_quality = qualities.Finish();
  std::sort(summary.by_quality.begin(), summary.by_quality.end(), by_name);
  summary.by_class = classes.Finish();
  std::sort(summary.by_class.begin(), summary.by_class.end(), by_name);
  if (summary.num_memory > 0) {
    summary.mean_memory_error = memory_errors / summary.num_memory;
  }
  summary.choices = SummarizeChoices(predictions);
  return summary;
}

}  // namespace millrace
