// `millrace report RUN`: writes the report page of a run and prints its key
// figures.

#ifndef MILLRACE_COORDINATOR_CLI_REPORT_COMMAND_H_
#define MILLRACE_COORDINATOR_CLI_REPORT_COMMAND_H_

#include "CLI/CLI.hpp"

namespace millrace {

// Adds the command; `exit_code` is set when it runs.
void AddReportCommand(CLI::App& app, int* exit_code);

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_CLI_REPORT_COMMAND_H_
