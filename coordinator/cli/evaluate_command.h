// `millrace evaluate`: the cost model against steps that were measured.

#ifndef MILLRACE_COORDINATOR_CLI_EVALUATE_COMMAND_H_
#define MILLRACE_COORDINATOR_CLI_EVALUATE_COMMAND_H_

#include "CLI/CLI.hpp"

namespace millrace {

// Adds the command; parsing it leaves its exit code in *exit_code.
void AddEvaluateCommand(CLI::App& app, int* exit_code);

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_CLI_EVALUATE_COMMAND_H_
