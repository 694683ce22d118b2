#include "coordinator/cli/profile_command.h"

#include <memory>

#include "coordinator/cli/launch.h"

namespace millrace {

void AddProfileCommand(CLI::App& app, int* exit_code) {
  auto options = std::make_shared<LaunchOptions>();
  options->profile_only = true;
  CLI::App* command = app.add_subcommand(
      "profile", "Measure this machine for a job's plans, and keep the result");
  command->add_option("JOB", options->job_file, "Job file (docs/job.md)")
      ->required();
  command
      ->add_option("-n,--devices", options->num_devices,
                   "Workers that measure together, instead of "
                   "resources.devices_per_agent")
      ->check(CLI::PositiveNumber);
  command->footer(
      "Example:\n"
      "  millrace profile -n 4 configs/quickstart.yaml\n"
      "The profile is cached for this machine, this number of workers and this "
      "model; plan, run and agent find it there.");
  command->callback([=] { *exit_code = Launch(*options); });
}

}  // namespace millrace
