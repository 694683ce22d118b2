#include "planner/calibrate_profile.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "planner/calibrate_prior.h"
#include "planner/evaluate.h"
#include "planner/evaluation_summary.h"
#include "planner/interval.h"

namespace millrace {
namespace {

struct Fit {
  std::vector<RunPrediction> predictions;  // Supported, with a measured time.
  double median_error = 0;
};

Fit PredictAll(const std::vector<PublishedRun>& runs,
               const std::string& profile_name, const HardwareProfile& profile,
               std::vector<std::string>* reasons) {
  const ProfileSource source = [&](const std::string& name) {
    return name == profile_name
               ? absl::StatusOr<HardwareProfile>(profile)
               : absl::NotFoundError(
                     absl::StrCat("runs on ", name, ", not on ", profile_name));
  };
  Fit fit;
  std::vector<double> errors;
  for (const PublishedRun& run : runs) {
    RunPrediction prediction = PredictRun(run, source, {.sensitivities = true});
    const std::optional<double> error = prediction.step_time_error();
    if (error) {
      errors.push_back(std::fabs(*error));
      fit.predictions.push_back(std::move(prediction));
    } else {
      reasons->push_back(absl::StrCat(run.id, ": ",
                                      prediction.is_supported()
                                          ? "no step time was measured"
                                          : prediction.status.message()));
    }
  }
  if (!errors.empty()) fit.median_error = Quantile(std::move(errors), 0.5);
  return fit;
}

// What constants cannot say of a run: its noise, and what is off in the model.
constexpr double kUnexplained = 0.03;
// The runs may be of an installation unlike those that the profile was fitted
// to: so much wider are its constants' spreads.
constexpr double kOtherInstallation = 6;
constexpr double kOutlier = 4;  // Standard deviations.

// log(constant / listed) of each constant that explains the fit's runs best;
// `moved` is where the constants of the fit stand. Says which runs it used.
std::vector<double> Move(const Fit& fit, const std::vector<double>& moved,
                         const std::vector<double>& variances,
                         ProfileCorrection* result) {
  const size_t n = fit.predictions.size();
  std::vector<double> targets;
  std::vector<double> covariance(n * n);
  for (size_t i = 0; i < n; ++i) {
    const RunPrediction& prediction = fit.predictions[i];
    double target =
        std::log(*MeasuredStepTime(prediction.run) / prediction.step_time_s);
    for (size_t k = 0; k < moved.size(); ++k) {
      target += prediction.sensitivities[k] * moved[k];
    }
    targets.push_back(target);
    for (size_t j = 0; j < n; ++j) {
      covariance[i * n + j] = WeightedDot(variances, prediction.sensitivities,
                                          fit.predictions[j].sensitivities);
    }
  }
  const RobustWeights solved =
      SolveRobustly(covariance, targets, kUnexplained * kUnexplained);
  std::vector<double> next(moved.size());
  result->used.clear();
  result->outliers.clear();
  for (size_t i = 0; i < n; ++i) {
    const bool is_outlier =
        std::fabs(solved.residuals[i]) > kOutlier * kUnexplained;
    (is_outlier ? result->outliers : result->used)
        .push_back(fit.predictions[i].run.id);
    for (size_t k = 0; k < moved.size(); ++k) {
      next[k] += variances[k] * fit.predictions[i].sensitivities[k] *
                 solved.weights[i];
    }
  }
  return next;
}

}  // namespace

absl::StatusOr<ProfileCorrection> CorrectProfile(
    const std::vector<PublishedRun>& runs, const std::string& profile_name,
    const HardwareProfile& profile) {
  std::vector<std::string> reasons;
  Fit fit = PredictAll(runs, profile_name, profile, &reasons);
  if (fit.predictions.empty()) {
    constexpr size_t kShown = 3;
    reasons.resize(std::min(reasons.size(), kShown));
    return absl::InvalidArgumentError(absl::StrCat(
        "no run says anything of ", profile_name, reasons.empty() ? "" : ": ",
        absl::StrJoin(reasons, "; ")));
  }
  ProfileCorrection result;
  result.profile = profile;
  result.median_error_before = fit.median_error;
  std::vector<double> variances;
  for (const ModelConstant& constant : profile.constants) {
    variances.push_back(kOtherInstallation * kOtherInstallation *
                        VarianceOfConstant(constant.name));
  }
  Fit best = fit;
  std::vector<double> moved(variances.size());
  constexpr int kNumSteps = 4;
  for (int step = 0; step < kNumSteps; ++step) {
    ProfileCorrection next = result;
    moved = Move(fit, moved, variances, &next);
    for (size_t k = 0; k < moved.size(); ++k) {
      // A step reaches as far as derivatives can be believed.
      const double reach = 2 * std::sqrt(variances[k]);
      moved[k] = std::clamp(moved[k], -reach, reach);
      ModelConstant& constant = next.profile.constants[k];
      constant.value = profile.constants[k].value * std::exp(moved[k]);
      if (absl::EndsWith(constant.name, "_share")) {
        constant.value = std::min(constant.value, 1.0);
      }
      if (profile.constants[k].value > 0) {
        moved[k] = std::log(constant.value / profile.constants[k].value);
      }
    }
    fit = PredictAll(runs, profile_name, next.profile, &reasons);
    next.median_error_after = fit.median_error;
    if (step == 0 || fit.median_error < result.median_error_after) {
      result = std::move(next);
      best = fit;
    }
  }
  std::vector<double> ratios;
  for (const RunPrediction& prediction : best.predictions) {
    ratios.push_back(*MeasuredStepTime(prediction.run) /
                     prediction.step_time_s);
  }
  result.profile.step_error = ErrorOfRuns(
      ratios, "the measured runs that corrected it, outliers among them");
  for (size_t k = 0; k < moved.size(); ++k) {
    absl::StrAppendFormat(
        &result.profile.constants[k].source, "; x %.3f by %d measured runs",
        result.profile.constants[k].value / profile.constants[k].value,
        result.used.size());
  }
  return result;
}

}  // namespace millrace
