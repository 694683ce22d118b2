// `millrace checkpoint list|show|verify|export|reshard`: what lies on disk, and
// what can be made of it.

#ifndef MILLRACE_COORDINATOR_CLI_CHECKPOINT_COMMAND_H_
#define MILLRACE_COORDINATOR_CLI_CHECKPOINT_COMMAND_H_

#include "CLI/CLI.hpp"

namespace millrace {

// Adds the command; `exit_code` is set when it runs.
void AddCheckpointCommand(CLI::App& app, int* exit_code);

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_CLI_CHECKPOINT_COMMAND_H_
