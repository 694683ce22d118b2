#include "planner/evaluate/evaluate.h"

#include <cmath>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "planner/cost/layer_work.h"
#include "planner/search/search.h"

namespace millrace {
namespace {

// The step of the numerical derivative. It is small enough for a derivative and
// large enough to change a rounded number of tile waves.
constexpr double kLogStep = 0.05;

absl::StatusOr<StepPrediction> Predict(const RunSetup& setup,
                                       const HardwareProfile& profile) {
  ASSIGN_OR_RETURN(StepModel model, StepModel::Create(setup.model, profile,
                                                      setup.implementation));
  RETURN_IF_ERROR(model.CheckPrices(setup.layout));
  StepPrediction prediction = model.Predict(setup.layout);
  if (setup.memory_is_of_first_rank) {
    prediction.memory = model.MemoryByStage(setup.layout).front();
  }
  return prediction;
}

// Returns the bytes of weights, gradients and moments of the embedding on the
// first stage, which is the fullest, and of the head if it is on the same
// stage.
double StateOfEnds(const RunSetup& setup) {
  const Implementation& how = setup.implementation;
  constexpr double kWeightBytes = 2;
  double elements = ParametersOfEmbedding(setup.model, setup.layout).dense;
  if (setup.layout.pipeline == 1) {
    elements += ParametersOfHead(setup.model, setup.layout).dense;
  }
  return (kWeightBytes + how.gradient_bytes + how.optimizer_bytes) * elements;
}

absl::StatusOr<std::vector<Sensitivity>> Sensitivities(
    const RunSetup& setup, const HardwareProfile& profile, double step_time_s) {
  std::vector<Sensitivity> sensitivities;
  for (size_t i = 0; i < profile.constants.size(); ++i) {
    // Constants move downwards because shares must not exceed one.
    HardwareProfile changed = profile;
    changed.constants[i].value *= std::exp(-kLogStep);
    ASSIGN_OR_RETURN(const StepPrediction prediction, Predict(setup, changed));
    sensitivities.push_back(
        {.constant = changed.constants[i].name,
         .value =
             std::log(step_time_s / prediction.time.step_time_s()) / kLogStep});
  }
  return sensitivities;
}

absl::Status Fill(const RunRules& rules, const ProfileSource& profiles,
                  const PredictionOptions& options, RunPrediction* out) {
  if (!out->run.fault.empty()) {
    return absl::InvalidArgumentError(out->run.fault);
  }
  ASSIGN_OR_RETURN(out->setup, SetUpRun(out->run, rules));
  RETURN_IF_ERROR(ValidatePlannedLayout(out->setup.model, out->setup.layout,
                                        out->setup.layout.global_batch()));
  ASSIGN_OR_RETURN(const HardwareProfile profile, profiles(out->setup.profile));
  RETURN_IF_ERROR(CheckFormat(out->setup.layout.gemm_format, profile));
  ASSIGN_OR_RETURN(out->predicted, Predict(out->setup, profile));
  out->step_time_s = out->predicted.time.step_time_s();
  const StepMemory& memory = out->predicted.memory;
  out->memory_bytes = static_cast<double>(memory.total() - memory.overhead) *
                      out->setup.reserved_per_allocated;
  if (out->run.kind == "memory_formula") {
    out->memory_bytes -=
        static_cast<double>(memory.working) + StateOfEnds(out->setup);
  }
  if (options.sensitivities) {
    ASSIGN_OR_RETURN(out->sensitivities,
                     Sensitivities(out->setup, profile, out->step_time_s));
  }
  return absl::OkStatus();
}

}  // namespace

std::optional<double> RunPrediction::step_time_error() const {
  const std::optional<double> measured = MeasuredStepTime(run);
  if (!is_supported() || !measured) return std::nullopt;
  return step_time_s / *measured - 1;
}

std::optional<double> RunPrediction::memory_error() const {
  const std::optional<double> measured = MeasuredMemoryBytes(run);
  if (!is_supported() || !measured) return std::nullopt;
  return memory_bytes / *measured - 1;
}

std::string RunPrediction::why_no_error() const {
  if (!is_supported()) return std::string(status.message());
  return MeasuredStepTime(run) ? "" : "no step time was measured";
}

RunPrediction PredictRun(const PublishedRun& run, const RunRules& rules,
                         const ProfileSource& profiles,
                         const PredictionOptions& options) {
  RunPrediction prediction;
  prediction.run = run;
  prediction.status = Fill(rules, profiles, options, &prediction);
  return prediction;
}

ProfileSource CachedProfiles(ProfileSource load) {
  auto cache = std::make_shared<
      std::map<std::string, absl::StatusOr<HardwareProfile>>>();
  return [cache, load = std::move(load)](const std::string& name) {
    const auto found = cache->find(name);
    if (found != cache->end()) return found->second;
    return cache->emplace(name, load(name)).first->second;
  };
}

}  // namespace millrace
