// `millrace calibrate`: a hardware profile corrected by steps that were
// measured.

#ifndef MILLRACE_COORDINATOR_CLI_CALIBRATE_COMMAND_H_
#define MILLRACE_COORDINATOR_CLI_CALIBRATE_COMMAND_H_

#include "CLI/CLI.hpp"

namespace millrace {

// Adds the command; parsing it leaves its exit code in *exit_code.
void AddCalibrateCommand(CLI::App& app, int* exit_code);

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_CLI_CALIBRATE_COMMAND_H_
