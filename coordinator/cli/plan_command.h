// `millrace plan JOB`: chooses a layout for a job and says why.

#ifndef MILLRACE_COORDINATOR_CLI_PLAN_COMMAND_H_
#define MILLRACE_COORDINATOR_CLI_PLAN_COMMAND_H_

#include "CLI/CLI.hpp"

namespace millrace {

// Adds the command; `exit_code` is set when it runs: 0, 2 for a job that cannot
// work, 1 for any other failure.
void AddPlanCommand(CLI::App& app, int* exit_code);

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_CLI_PLAN_COMMAND_H_
