#include "coordinator/cli/worker_command.h"

#include <iostream>
#include <memory>

#include "base/files.h"
#include "coordinator/protocol/secret.h"
#include "worker/agent/worker_process.h"

namespace millrace {
namespace {

struct Arguments {
  WorkerOptions worker;
  int32_t worker_idx = 0;
  int64_t heartbeat_ms = 200;
};

int Run(Arguments arguments) {
  const PrivateFiles private_files;
  absl::StatusOr<std::string> secret = SecretFromEnvironment();
  absl::Status status = secret.status();
  if (status.ok()) {
    arguments.worker.secret = *secret;
    arguments.worker.worker = WorkerIdx{arguments.worker_idx};
    arguments.worker.heartbeat_interval =
        absl::Milliseconds(arguments.heartbeat_ms);
    status = RunWorker(arguments.worker);
  }
  if (status.ok()) return 0;
  std::cerr << "millrace worker: " << status.message() << std::endl;
  return 1;
}

}  // namespace

void AddWorkerCommand(CLI::App& app, int* exit_code) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command =
      app.add_subcommand("worker", "One device; agents start this");
  WorkerOptions& worker = arguments->worker;
  CLI::Option* const coordinator =
      command->add_option("--coordinator", worker.coordinator_address);
  command->add_option("--run", worker.run)->required();
  command->add_option("--checkpoints", worker.checkpoint_directory)->required();
  command->add_option("--worker", arguments->worker_idx)
      ->required()
      ->check(CLI::NonNegativeNumber);
  command->add_option("--incarnation", worker.incarnation)->needs(coordinator);
  // Instead of the coordinator and the incarnation, which are said later.
  command->add_option("--standby-fd", worker.standby_fd)->excludes(coordinator);
  command->add_option("--host-address", worker.host_address)->required();
  command->add_option("--gpu-bus-id", worker.gpu_bus_id);
  command->add_option("--threads", worker.num_threads)
      ->required()
      ->check(CLI::PositiveNumber);
  command->add_option("--heartbeat-ms", arguments->heartbeat_ms)
      ->check(CLI::PositiveNumber);
  command->add_option("--replica-fd", worker.replica_fd);
  command->add_option("--predecessor-fd", worker.predecessor_fds);
  command->add_option("--data-prefix", worker.data_prefixes);
  command->add_option("--evaluation-prefix", worker.evaluation_prefixes);
  command->group("");  // Not for people.
  command->callback([=] { *exit_code = Run(*arguments); });
}

}  // namespace millrace
