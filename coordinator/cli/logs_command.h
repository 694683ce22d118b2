// `millrace logs`: the log of a rank, from whatever host it lies on.

#ifndef MILLRACE_COORDINATOR_CLI_LOGS_COMMAND_H_
#define MILLRACE_COORDINATOR_CLI_LOGS_COMMAND_H_

#include "CLI/CLI.hpp"

namespace millrace {

// Sets `*exit_code` when the command runs.
void AddLogsCommand(CLI::App& app, int* exit_code);

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_CLI_LOGS_COMMAND_H_
