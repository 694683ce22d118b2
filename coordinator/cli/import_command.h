// `millrace import --from FRAMEWORK FILE`: a job file from the configuration of
// another framework.

#ifndef MILLRACE_COORDINATOR_CLI_IMPORT_COMMAND_H_
#define MILLRACE_COORDINATOR_CLI_IMPORT_COMMAND_H_

#include "CLI/CLI.hpp"

namespace millrace {

// Adds the command; `exit_code` is set when it runs: 0, 2 for a file that
// cannot be read or whose job cannot be ours, 1 for any other failure.
void AddImportCommand(CLI::App& app, int* exit_code);

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_CLI_IMPORT_COMMAND_H_
