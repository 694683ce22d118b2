// `millrace status`: one look at a job, from any host.

#ifndef MILLRACE_COORDINATOR_CLI_STATUS_COMMAND_H_
#define MILLRACE_COORDINATOR_CLI_STATUS_COMMAND_H_

#include "CLI/CLI.hpp"

namespace millrace {

// Sets `*exit_code` when the command runs.
void AddStatusCommand(CLI::App& app, int* exit_code);

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_CLI_STATUS_COMMAND_H_
