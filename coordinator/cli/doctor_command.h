// millrace doctor: examines the hosts of a job before it starts.

#ifndef MILLRACE_COORDINATOR_CLI_DOCTOR_COMMAND_H_
#define MILLRACE_COORDINATOR_CLI_DOCTOR_COMMAND_H_

#include "CLI/CLI.hpp"

namespace millrace {

// The exit code if a job would fail on these hosts.
inline constexpr int kJobWouldFail = 3;

void AddDoctorCommand(CLI::App& app, int* exit_code);

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_CLI_DOCTOR_COMMAND_H_
