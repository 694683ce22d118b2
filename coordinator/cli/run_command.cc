#include "coordinator/cli/run_command.h"

#include <memory>

#include "coordinator/cli/launch.h"

namespace millrace {

void AddRunCommand(CLI::App& app, int* exit_code) {
  auto options = std::make_shared<LaunchOptions>();
  CLI::App* command = app.add_subcommand("run", "Train a job on this machine");
  command->add_option("JOB", options->job_file, "Job file (docs/job.md)")
      ->required();
  command
      ->add_option("-n,--devices", options->num_devices,
                   "Workers, instead of resources.devices_per_agent")
      ->check(CLI::PositiveNumber);
  command->footer(
      "Example:\n"
      "  millrace run configs/quickstart.yaml\n"
      "  millrace run -n 4 job.yaml      four ranks on this machine\n"
      "Ctrl-C finishes the step, writes a checkpoint and exits with 0; a "
      "second one stops at once.");
  command->callback([=] { *exit_code = Launch(*options); });
}

}  // namespace millrace
