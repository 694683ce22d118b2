#include "coordinator/cli/agent_command.h"

#include <memory>

#include "coordinator/cli/launch.h"

namespace millrace {

void AddAgentCommand(CLI::App& app, int* exit_code) {
  auto options = std::make_shared<LaunchOptions>();
  options->under_mpi = true;
  CLI::App* command = app.add_subcommand(
      "agent", "Train a job over many machines: mpirun starts this");
  command->add_option("JOB", options->job_file, "Job file (docs/job.md)")
      ->required();
  command->footer(
      "Examples:\n"
      "  mpirun --map-by ppr:1:node --bind-to none millrace agent job.yaml\n"
      "  mpirun -n 2 --oversubscribe --bind-to none millrace agent job.yaml\n"
      "Agents of one host share its devices. The job file is agent 0's; other "
      "hosts need no copy (docs/cluster.md).");
  command->callback([=] { *exit_code = Launch(*options); });
}

}  // namespace millrace
