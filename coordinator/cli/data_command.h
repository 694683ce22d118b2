// `millrace data show`: what the model will see of a job's data.

#ifndef MILLRACE_COORDINATOR_CLI_DATA_COMMAND_H_
#define MILLRACE_COORDINATOR_CLI_DATA_COMMAND_H_

#include "CLI/CLI.hpp"

namespace millrace {

// Adds the command; `exit_code` is set when it runs.
void AddDataCommand(CLI::App& app, int* exit_code);

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_CLI_DATA_COMMAND_H_
