#include "planner/evaluate/profile_errors.h"

#include <optional>

#include "planner/profile/prediction_interval.h"

namespace millrace {

namespace {

// Measured over predicted of a run that says how far plans are off: of good
// quality, and not what a calibration was made with.
std::optional<double> RatioOf(const RunPrediction& prediction) {
  const std::string& quality = prediction.run.quality;
  const bool is_good = quality == "A-" || quality == "A" || quality == "A+";
  if (!prediction.is_supported() || !is_good || prediction.is_calibration) {
    return std::nullopt;
  }
  const std::optional<double> error = prediction.step_time_error();
  if (!error.has_value()) return std::nullopt;
  return 1 / (1 + *error);
}

bool HasExperts(const RunPrediction& prediction) {
  return prediction.setup.model.moe.num_experts > 0;
}

}  // namespace

std::map<std::string, StepError> ErrorsByProfile(
    const std::vector<RunPrediction>& predictions) {
  std::map<std::string, std::vector<double>> ratios;
  for (const RunPrediction& prediction : predictions) {
    const std::optional<double> ratio = RatioOf(prediction);
    if (!ratio.has_value() || HasExperts(prediction)) continue;
    ratios[prediction.setup.profile].push_back(*ratio);
  }
  std::map<std::string, StepError> errors;
  for (const auto& [profile, of_profile] : ratios) {
    errors[profile] = ErrorOfRuns(
        of_profile, "millrace evaluate: published runs of dense models");
  }
  return errors;
}

StepError ErrorOfExperts(const std::vector<RunPrediction>& predictions) {
  std::vector<double> ratios;
  for (const RunPrediction& prediction : predictions) {
    const std::optional<double> ratio = RatioOf(prediction);
    if (ratio.has_value() && HasExperts(prediction)) ratios.push_back(*ratio);
  }
  return ErrorOfRuns(ratios, "millrace evaluate: published runs of experts");
}

}  // namespace millrace
