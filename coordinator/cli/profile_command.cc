#include "coordinator/cli/profile_command.h"

#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "coordinator/cli/launch.h"
#include "coordinator/profile_learning.h"
#include "planner/profile/profile_file.h"
#include "planner/profile/profile_merge.h"
#include "planner/profile/shipped_profiles.h"

namespace millrace {
namespace {

struct ProfileOptions {
  LaunchOptions launch = {.profile_only = true};  // All but profile_output.
  std::vector<std::string> merge;
  std::string from_run;
  std::string output;
};

absl::Status RunMerge(const ProfileOptions& options) {
  std::vector<ProfilePart> parts;
  for (const std::string& file : options.merge) {
    ASSIGN_OR_RETURN(HardwareProfile profile, LoadNamedProfile(file));
    parts.push_back({.file = file, .profile = std::move(profile)});
  }
  ASSIGN_OR_RETURN(const MergedProfile merged, MergeProfiles(parts));
  RETURN_IF_ERROR(SaveProfile(merged.profile, options.output));
  for (const std::string& warning : merged.warnings) {
    std::cerr << "warning: " << warning << "\n";
  }
  const HardwareProfile& profile = merged.profile;
  std::cout << absl::StrFormat(
      "%s: %d profiles of %s joined; %d products, %d of attention, %d of the "
      "loss, %d by bytes, %d of communication\n",
      options.output, parts.size(), profile.provenance.machine,
      profile.gemms.size(), profile.attention.size(),
      profile.cross_entropy.size(), profile.bandwidth.size(),
      profile.communication.size());
  return absl::OkStatus();
}

absl::Status RunFromRun(const ProfileOptions& options) {
  ASSIGN_OR_RETURN(
      const LearntFile taught,
      LearnProfile(options.from_run, {.output = options.output,
                                      // Whoever names a run knows it.
                                      .believes_busy_steps = true}));
  for (const std::string& line : DescribeLearnt(taught)) {
    std::cout << line << "\n";
  }
  return absl::OkStatus();
}

}  // namespace

void AddProfileCommand(CLI::App& app, int* exit_code) {
  auto options = std::make_shared<ProfileOptions>();
  CLI::App* command = app.add_subcommand(
      "profile",
      "Measure this machine for a job's plans, whatever profile the job names, "
      "and keep the result; or merge profiles; or let one learn from a run");
  CLI::Option* job = command->add_option("JOB", options->launch.job_file,
                                         "Job file (docs/job.md)");
  CLI::Option* devices =
      command
          ->add_option("-n,--devices", options->launch.num_devices,
                       "Workers that measure together, instead of "
                       "resources.devices_per_agent")
          ->check(CLI::PositiveNumber);
  CLI::Option* tune =
      command->add_flag("--tune", options->launch.tune,
                        "Measure too which ways GPU kernels and matrix "
                        "products are fastest here; "
                        "some minutes, and training then takes them");
  CLI::Option* merge =
      command
          ->add_option("--merge", options->merge,
                       "Measure nothing: join these profiles of one kind of "
                       "machine into one")
          ->expected(2, -1)
          ->excludes(job)
          ->excludes(devices)
          ->excludes(tune);
  command
      ->add_option("--from-run", options->from_run,
                   "Measure nothing: let the profile learn from the steps of "
                   "this run directory")
      ->excludes(job)
      ->excludes(devices)
      ->excludes(tune)
      ->excludes(merge);
  CLI::Option* output = command->add_option(
      "--output", options->output,
      "The file of the measured profile (default: this machine's cache); or of "
      "the merged one; or the profile that learns, begun from the run's where "
      "there is none (default: the one that the run's job names)");
  merge->needs(output);
  command->footer(
      "Examples:\n"
      "  millrace profile -n 4 configs/quickstart.yaml\n"
      "  millrace profile --tune configs/llama3-8b.yaml --output h200.yaml\n"
      "  millrace profile --merge 8b.yaml 70b.yaml --output mine.yaml\n"
      "  millrace profile --from-run runs/quickstart-latest\n"
      "The first is cached for this machine, this number of workers and this "
      "model; plan, run and agent find it there where the job says profile: "
      "auto. The second and third go with plan's --profile, or with profile: "
      "FILE in a job. The last is what a run does at its end unless its job "
      "says profile_output: none. Profiles that come with Millrace are never "
      "overwritten.");
  command->callback([options, exit_code] {
    const bool merges = !options->merge.empty();
    if (!merges && options->from_run.empty()) {
      if (options->launch.job_file.empty()) {
        throw CLI::RequiredError("JOB, --from-run, or --merge with --output,");
      }
      LaunchOptions launch = options->launch;
      if (!options->output.empty()) {
        // The coordinator's working directory may be another.
        launch.profile_output =
            std::filesystem::absolute(options->output).string();
      }
      *exit_code = Launch(launch);
      return;
    }
    const absl::Status status =
        merges ? RunMerge(*options) : RunFromRun(*options);
    if (!status.ok()) {
      std::cerr << "millrace profile: " << status.message() << std::endl;
    }
    *exit_code = status.ok() ? 0 : 2;
  });
}

}  // namespace millrace
