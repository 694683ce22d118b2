#include "coordinator/cli/agent_command.h"

#include <memory>

#include "coordinator/cli/launch.h"
#include "coordinator/cli/meeting.h"

namespace millrace {

void AddAgentCommand(CLI::App& app, int* exit_code) {
  auto options = std::make_shared<LaunchOptions>();
  options->meeting.under_mpi = true;
  CLI::App* command = app.add_subcommand(
      "agent", "Train a job over many machines: mpirun or srun starts this");
  CLI::Option* job = command->add_option(
      "JOB", options->job_file, "Job file (docs/job.md); not needed to join");
  AddMeetingOptions(command, &options->meeting);
  command->footer(
      "Examples:\n"
      "  mpirun --map-by ppr:1:node --bind-to none millrace agent job.yaml\n"
      "  mpirun -n 2 --oversubscribe --bind-to none millrace agent job.yaml\n"
      "  millrace agent job.yaml --agents 2 --port 4711 --secret-file FILE\n"
      "  millrace agent --join node1:4711 --secret-file FILE\n"
      "Agents of one host share its devices. The job file is agent 0's; other "
      "hosts need no copy (docs/cluster.md).");
  command->callback([=] {
    if (job->empty() && options->meeting.join.empty()) {
      throw CLI::RequiredError("JOB");
    }
    *exit_code = Launch(*options);
  });
}

}  // namespace millrace
