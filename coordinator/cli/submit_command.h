// `millrace submit`: trains a job on a cluster with a queue.

#ifndef MILLRACE_COORDINATOR_CLI_SUBMIT_COMMAND_H_
#define MILLRACE_COORDINATOR_CLI_SUBMIT_COMMAND_H_

#include "CLI/CLI.hpp"

namespace millrace {

// Sets `*exit_code` when it runs.
void AddSubmitCommand(CLI::App& app, int* exit_code);

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_CLI_SUBMIT_COMMAND_H_
