// `millrace profile JOB` measures this machine for a job; `millrace profile
// --merge` joins profiles into one.

#ifndef MILLRACE_COORDINATOR_CLI_PROFILE_COMMAND_H_
#define MILLRACE_COORDINATOR_CLI_PROFILE_COMMAND_H_

#include "CLI/CLI.hpp"

namespace millrace {

// Adds the command; `exit_code` is set when it runs.
void AddProfileCommand(CLI::App& app, int* exit_code);

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_CLI_PROFILE_COMMAND_H_
