// `millrace score`: the loss of held-out sets and the share of right answers.

#ifndef MILLRACE_COORDINATOR_CLI_SCORE_COMMAND_H_
#define MILLRACE_COORDINATOR_CLI_SCORE_COMMAND_H_

#include "CLI/CLI.hpp"

namespace millrace {

void AddScoreCommand(CLI::App& app, int* exit_code);

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_CLI_SCORE_COMMAND_H_
