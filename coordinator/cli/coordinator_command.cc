#include "coordinator/cli/coordinator_command.h"

#include <unistd.h>

#include <iostream>
#include <memory>

#include "base/files.h"
#include "coordinator/coordinator.h"
#include "coordinator/protocol/secret.h"

namespace millrace {
namespace {

int Run(CoordinatorOptions options) {
  absl::StatusOr<std::string> secret = SecretFromEnvironment();
  if (!secret.ok()) {
    std::cerr << "millrace coordinator: " << secret.status().message()
              << std::endl;
    return 1;
  }
  options.secret = *secret;
  options.agent_pid = getppid();
  const PrivateFiles private_files;
  const absl::StatusOr<int> exit_code = RunCoordinator(options);
  if (exit_code.ok()) return *exit_code;
  std::cerr << "millrace coordinator: " << exit_code.status().message()
            << std::endl;
  return 1;
}

}  // namespace

void AddCoordinatorCommand(CLI::App& app, int* exit_code) {
  auto options = std::make_shared<CoordinatorOptions>();
  CLI::App* command = app.add_subcommand("coordinator", "Agent 0 starts this");
  command->add_option("--run-directory", options->run_directory)->required();
  command->add_option("--job-file", options->job_file)->required();
  command->add_option("--listen-fd", options->listen_fd)
      ->required()
      ->check(CLI::NonNegativeNumber);
  command->add_option("--agents", options->num_agents)
      ->required()
      ->check(CLI::PositiveNumber);
  command->add_option("--run", options->run);
  command->add_option("--own-agent", options->own_agent)
      ->check(CLI::NonNegativeNumber);
  command->add_option("--term", options->term)->check(CLI::NonNegativeNumber);
  command->add_option("--taken-over-from", options->taken_over_from)
      ->check(CLI::NonNegativeNumber);
  command->add_option("--host", options->hosts);
  command->add_option("--join-seconds", options->join_seconds)
      ->check(CLI::PositiveNumber);
  command->add_flag("--profile-only", options->profile_only);
  command->add_option("--profile-output", options->profile_output);
  command->add_flag("--tune", options->tune);
  command->group("");  // Not for people.
  command->callback([=] { *exit_code = Run(*options); });
}

}  // namespace millrace
