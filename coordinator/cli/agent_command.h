// `millrace agent JOB`: what mpirun starts, one process per node or per device.

#ifndef MILLRACE_COORDINATOR_CLI_AGENT_COMMAND_H_
#define MILLRACE_COORDINATOR_CLI_AGENT_COMMAND_H_

#include "CLI/CLI.hpp"

namespace millrace {

// Adds the command; `exit_code` is set when it runs.
void AddAgentCommand(CLI::App& app, int* exit_code);

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_CLI_AGENT_COMMAND_H_
