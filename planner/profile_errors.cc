#include "planner/profile_errors.h"

#include <optional>

#include "planner/interval.h"

namespace millrace {

std::map<std::string, StepError> ErrorsByProfile(
    const std::vector<RunPrediction>& predictions) {
  std::map<std::string, std::vector<double>> ratios;
  for (const RunPrediction& prediction : predictions) {
    const std::string& quality = prediction.run.quality;
    const bool is_good = quality == "A-" || quality == "A" || quality == "A+";
    if (!prediction.is_supported() || !is_good || prediction.is_calibration ||
        prediction.setup.model.moe.num_experts > 0) {
      continue;
    }
    const std::optional<double> error = prediction.step_time_error();
    if (!error.has_value()) continue;
    ratios[prediction.setup.profile].push_back(1 / (1 + *error));
  }
  std::map<std::string, StepError> errors;
  for (const auto& [profile, of_profile] : ratios) {
    errors[profile] = ErrorOfRuns(
        of_profile, "millrace evaluate: published runs of dense models");
  }
  return errors;
}

}  // namespace millrace
