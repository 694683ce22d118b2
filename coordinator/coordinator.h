// The coordinator of one run: its server's messages become events of JobState,
// JobState's actions become messages, files and log records. It decides; agents
// and workers obey.
//
// Agent 0 starts it and starts it again if it dies. It then reads its log,
// meets the agents and workers that come back, and goes on; workers kept
// stepping meanwhile.

#ifndef MILLRACE_COORDINATOR_COORDINATOR_H_
#define MILLRACE_COORDINATOR_COORDINATOR_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace millrace {

struct CoordinatorOptions {
  std::string run_directory;  // Exists and holds job.yaml.
  std::string job_file;       // For people: as the user named it.
  int listen_fd = -1;         // Listening socket, made by agent 0.
  int32_t num_agents = 1;
  // By agent, as far as the launcher says so.
  std::vector<std::string> hosts;
  int64_t join_seconds = 60;  // For all agents to come.
  std::string secret;
  bool profile_only = false;
  // The file for the measured profile if profile_only is set. Empty: the cache.
  std::string profile_output;
  bool tune = false;  // With profile_only: kernels too (docs/profile.md).
};

// Runs until the job has ended and all agents know; returns the exit code they
// were told: 0 all well, 1 failed, 2 the job cannot work. A Status means that
// the coordinator itself could not work, for example on a damaged log.
absl::StatusOr<int> RunCoordinator(const CoordinatorOptions& options);

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_COORDINATOR_H_
