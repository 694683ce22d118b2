#include "coordinator/cli/evaluate_command.h"

#include <iostream>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "planner/evaluate/calibrate_predictions.h"
#include "planner/evaluate/evaluate.h"
#include "planner/evaluate/evaluation_report.h"
#include "planner/evaluate/evaluation_summary.h"
#include "planner/evaluate/own_profile.h"
#include "planner/evaluate/published_runs.h"
#include "planner/evaluate/run_rules.h"
#include "planner/profile/profile_file.h"
#include "planner/profile/shipped_profiles.h"

namespace millrace {
namespace {

struct EvaluateOptions {
  std::string runs_path;
  std::string calibration_path;
  int calibrate_first = 0;
  std::string profile_directory;
  std::string profile;
  std::string rules;
  bool json = false;
};

absl::StatusOr<ProfileSource> ProfilesOf(const EvaluateOptions& options,
                                         const RunRules& rules) {
  ProfileSource profiles = CachedProfiles(
      [directory = options.profile_directory](
          const std::string& name) -> absl::StatusOr<HardwareProfile> {
        if (directory.empty()) return LoadNamedProfile(name);
        return LoadProfile(absl::StrCat(directory, "/", name, ".yaml"));
      });
  if (options.profile.empty()) return profiles;
  ASSIGN_OR_RETURN(HardwareProfile loaded, LoadNamedProfile(options.profile));
  ASSIGN_OR_RETURN(OwnProfile own,
                   MakeOwnProfile(std::move(loaded), rules, profiles));
  return OwnProfileFirst(std::move(own), std::move(profiles));
}

absl::Status RunEvaluate(const EvaluateOptions& options) {
  ASSIGN_OR_RETURN(std::vector<PublishedRun> runs,
                   LoadPublishedRuns(options.runs_path));
  const size_t num_runs = runs.size();
  const bool calibrates =
      !options.calibration_path.empty() || options.calibrate_first > 0;
  std::vector<std::string> calibration_ids;
  if (!options.calibration_path.empty()) {
    ASSIGN_OR_RETURN(const std::vector<PublishedRun> calibration_runs,
                     LoadPublishedRuns(options.calibration_path));
    std::set<std::string> known;
    for (const PublishedRun& run : runs) known.insert(run.id);
    for (const PublishedRun& run : calibration_runs) {
      calibration_ids.push_back(run.id);
      if (!known.contains(run.id)) runs.push_back(run);
    }
  }
  ASSIGN_OR_RETURN(const RunRules rules,
                   options.rules.empty() ? LoadRulesBeside(options.runs_path)
                                         : LoadRunRules(options.rules));
  ASSIGN_OR_RETURN(const ProfileSource profiles, ProfilesOf(options, rules));
  std::vector<RunPrediction> predictions;
  for (const PublishedRun& run : runs) {
    predictions.push_back(
        PredictRun(run, rules, profiles, {.sensitivities = calibrates}));
  }
  if (options.calibrate_first > 0) {
    calibration_ids =
        ChooseCalibrationRuns(predictions, options.calibrate_first);
  }
  if (calibrates) Calibrate(calibration_ids, &predictions);
  for (const RunPrediction& prediction : predictions) {
    const std::string why_no_error = prediction.why_no_error();
    if (!prediction.is_calibration || why_no_error.empty()) continue;
    std::cerr << "warning: " << prediction.run.id
              << " calibrates nothing: " << why_no_error << "\n";
  }
  predictions.resize(num_runs);
  const EvaluationSummary summary = Summarize(predictions);
  std::cout << (options.json ? EvaluationToJson(predictions, summary)
                             : EvaluationToText(predictions, summary));
  return absl::OkStatus();
}

}  // namespace

void AddEvaluateCommand(CLI::App& app, int* exit_code) {
  auto options = std::make_shared<EvaluateOptions>();
  CLI::App* command = app.add_subcommand(
      "evaluate", "Hold the cost model to training steps that were measured");
  command
      ->add_option("RUNS", options->runs_path,
                   "Runs as JSON, or vTrain's table as CSV "
                   "(docs/evaluate.md)")
      ->required();
  CLI::Option* with = command->add_option(
      "--calibrate-with", options->calibration_path,
      "Runs that correct the predictions of runs like them; they do not count "
      "in the errors");
  command
      ->add_option("--calibrate-first", options->calibrate_first,
                   "Calibrate with so many runs of each group")
      ->check(CLI::PositiveNumber)
      ->excludes(with);
  command
      ->add_option("--profile-directory", options->profile_directory,
                   "Folder of hardware profiles, NAME.yaml each (default: "
                   "those that come with Millrace)")
      ->check(CLI::ExistingDirectory);
  command->add_option("--profile", options->profile,
                      "A profile measured on one's own machine, for runs on "
                      "devices of its type");
  command
      ->add_option("--rules", options->rules,
                   "Folder of frameworks.yaml and models.yaml, which say what "
                   "runs leave out (default: the folder of RUNS, else those "
                   "that come with Millrace)")
      ->check(CLI::ExistingDirectory);
  command->add_flag("--json", options->json,
                    "One JSON object a line: runs, then the summary");
  command->footer(
      "Example: millrace evaluate "
      "tests/data/published_runs/published_runs.json");
  command->callback([options, exit_code] {
    const absl::Status status = RunEvaluate(*options);
    if (!status.ok()) {
      std::cerr << "millrace evaluate: " << status.message() << std::endl;
    }
    *exit_code = status.ok() ? 0 : 2;
  });
}

}  // namespace millrace
