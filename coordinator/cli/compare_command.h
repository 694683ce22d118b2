// `millrace compare JOB`: one training step on CPU and GPU, op by op.

#ifndef MILLRACE_COORDINATOR_CLI_COMPARE_COMMAND_H_
#define MILLRACE_COORDINATOR_CLI_COMPARE_COMMAND_H_

#include "CLI/CLI.hpp"

namespace millrace {

// Adds the command; `exit_code` is set when it runs: 0 where all is within
// tolerance, 1 where an op differs or the step cannot run, 2 for bad input.
void AddCompareCommand(CLI::App& app, int* exit_code);

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_CLI_COMPARE_COMMAND_H_
