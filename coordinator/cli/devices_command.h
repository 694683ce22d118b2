// `millrace devices`: what this machine has to train on.

#ifndef MILLRACE_COORDINATOR_CLI_DEVICES_COMMAND_H_
#define MILLRACE_COORDINATOR_CLI_DEVICES_COMMAND_H_

#include "CLI/CLI.hpp"

namespace millrace {

// Adds the command; `exit_code` is set when it runs.
void AddDevicesCommand(CLI::App& app, int* exit_code);

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_CLI_DEVICES_COMMAND_H_
