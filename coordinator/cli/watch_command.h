// `millrace watch`: a run on the terminal or in the browser while it goes on.

#ifndef MILLRACE_COORDINATOR_CLI_WATCH_COMMAND_H_
#define MILLRACE_COORDINATOR_CLI_WATCH_COMMAND_H_

#include "CLI/CLI.hpp"

namespace millrace {

void AddWatchCommand(CLI::App& app, int* exit_code);

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_CLI_WATCH_COMMAND_H_
