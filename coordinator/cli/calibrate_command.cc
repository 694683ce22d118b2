#include "coordinator/cli/calibrate_command.h"

#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "planner/evaluate/calibrate_profile.h"
#include "planner/evaluate/evaluate.h"
#include "planner/evaluate/own_profile.h"
#include "planner/evaluate/published_runs.h"
#include "planner/evaluate/run_rules.h"
#include "planner/profile/profile_file.h"
#include "planner/profile/shipped_profiles.h"

namespace millrace {
namespace {

struct CalibrateOptions {
  std::string runs_path;
  std::string profile;
  std::string output;
  std::string rules;
};

absl::Status RunCalibrate(const CalibrateOptions& options) {
  ASSIGN_OR_RETURN(const std::vector<PublishedRun> runs,
                   LoadPublishedRuns(options.runs_path));
  for (const PublishedRun& run : runs) {
    if (run.fault.empty()) continue;
    std::cerr << "warning: " << run.fault << "; the row is left out\n";
  }
  ASSIGN_OR_RETURN(const RunRules rules,
                   options.rules.empty() ? LoadRulesBeside(options.runs_path)
                                         : LoadRunRules(options.rules));
  ASSIGN_OR_RETURN(HardwareProfile loaded, LoadNamedProfile(options.profile));
  ASSIGN_OR_RETURN(const OwnProfile own,
                   MakeOwnProfile(std::move(loaded), rules,
                                  CachedProfiles(LoadNamedProfile)));
  const HardwareProfile& profile = own.profile;
  ASSIGN_OR_RETURN(ProfileCorrection correction,
                   CorrectProfile(runs, rules, own));
  HardwareProfile& corrected = correction.profile;
  corrected.name = profile.name;
  const bool is_moved = corrected.constants != profile.constants;
  absl::StrAppend(&corrected.provenance.description, "; ",
                  is_moved ? "constants" : "step_error", " by the runs ",
                  absl::StrJoin(correction.used, " "), " of ",
                  options.runs_path);
  RETURN_IF_ERROR(SaveProfile(corrected, options.output));
  std::cout << absl::StrFormat(
      "%s: %d runs, median error %.1f%% before, %.1f%% after\n", options.output,
      correction.used.size(), 100 * correction.median_error_before,
      100 * correction.median_error_after);
  if (!is_moved) {
    std::cout << "Constants stay as they are: no others predict these runs, "
                 "and each model's from the others', much better.\n";
  }
  for (size_t i = 0; i < profile.constants.size(); ++i) {
    std::cout << absl::StrFormat(
        "  %-24s %10.4g -> %10.4g\n", profile.constants[i].name,
        profile.constants[i].value, corrected.constants[i].value);
  }
  if (!correction.outliers.empty()) {
    std::cout << "Counted for little, too far from the others: "
              << absl::StrJoin(correction.outliers, ", ") << "\n";
  }
  return absl::OkStatus();
}

}  // namespace

void AddCalibrateCommand(CLI::App& app, int* exit_code) {
  auto options = std::make_shared<CalibrateOptions>();
  CLI::App* command = app.add_subcommand(
      "calibrate", "Correct a hardware profile by steps that were measured");
  command
      ->add_option("RUNS", options->runs_path,
                   "Runs of any framework (docs/evaluate.md)")
      ->required();
  command
      ->add_option(
          "--profile", options->profile,
          "Name of a profile that comes with Millrace, or a file, also "
          "of one measured on such devices")
      ->required();
  command->add_option("--output", options->output, "The corrected profile")
      ->required();
  command
      ->add_option("--rules", options->rules,
                   "Folder of frameworks.yaml and models.yaml, which say what "
                   "runs leave out (default: the folder of RUNS, else those "
                   "that come with Millrace)")
      ->check(CLI::ExistingDirectory);
  command->footer(
      "Example: millrace calibrate runs.json --profile h100-sxm --output "
      "mine.yaml");
  command->callback([options, exit_code] {
    const absl::Status status = RunCalibrate(*options);
    if (!status.ok()) {
      std::cerr << "millrace calibrate: " << status.message() << std::endl;
    }
    *exit_code = status.ok() ? 0 : 2;
  });
}

}  // namespace millrace
