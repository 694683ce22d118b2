// `millrace coordinator`: one per job; agent 0 starts it.

#ifndef MILLRACE_COORDINATOR_CLI_COORDINATOR_COMMAND_H_
#define MILLRACE_COORDINATOR_CLI_COORDINATOR_COMMAND_H_

#include "CLI/CLI.hpp"

namespace millrace {

// Adds the command; `exit_code` is set when it runs.
void AddCoordinatorCommand(CLI::App& app, int* exit_code);

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_CLI_COORDINATOR_COMMAND_H_
