// `millrace diagnose TRACE`: where the time of a recorded GPU training step
// went, whoever's step it was.

#ifndef MILLRACE_COORDINATOR_CLI_DIAGNOSE_COMMAND_H_
#define MILLRACE_COORDINATOR_CLI_DIAGNOSE_COMMAND_H_

#include "CLI/CLI.hpp"

namespace millrace {

// Adds the command; `exit_code` is set when it runs: 0, or 2 for a trace that
// cannot be diagnosed.
void AddDiagnoseCommand(CLI::App& app, int* exit_code);

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_CLI_DIAGNOSE_COMMAND_H_
