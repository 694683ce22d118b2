// The coordinator of one run: its server's messages become events of JobState,
// JobState's actions become messages, files and log records. It decides; agents
// and workers obey.
//
// Agent 0 starts it and starts it again if it dies. It then reads its log,
// meets the agents and workers that come back, and goes on; workers kept
// stepping meanwhile. Where other agents keep its log, one of them does so when
// agent 0's host is lost (fault.coordinator_replicas).

#ifndef MILLRACE_COORDINATOR_COORDINATOR_H_
#define MILLRACE_COORDINATOR_COORDINATOR_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fault/file_system.h"

namespace millrace {

struct CoordinatorOptions {
  std::string run_directory;  // Exists and holds job.yaml.
  // The path of the run directory on agent 0's host, by which agents know the
  // run. Empty: the same.
  std::string run;
  std::string job_file;  // For people: as the user named it.
  int listen_fd = -1;    // Listening socket, made by agent 0.
  int32_t num_agents = 1;
  int32_t own_agent = 0;  // On this host.
  // Where the coordinator's log has copies (succession/log_keeper.h): a number
  // that no other coordinator process of the run has. 0: it has none.
  int64_t term = 0;
  // The agent that had the coordinator before, if another host's; -1: none.
  int32_t taken_over_from = -1;
  // By agent, as far as the launcher says so.
  std::vector<std::string> hosts;
  int64_t join_seconds = 60;  // For all agents to come.
  std::string secret;
  bool profile_only = false;
  // The file for the measured profile if profile_only is set. Empty: the cache.
  std::string profile_output;
  bool tune = false;  // With profile_only: kernels too (docs/profile.md).
  // By which this host's checkpoints are read and committed, for tests of disks
  // that hang. Borrowed; null: the job's own (objects/stored_files.h).
  FileSystem* checkpoint_files = nullptr;
  // The agent that started this process, which is killed when the agent ends.
  // From the request to stop on it is not killed, and ends by itself. 0: none.
  pid_t agent_pid = 0;
};

// Runs until the job has ended and all agents know; returns the exit code they
// were told: 0 all well, 1 failed, 2 the job cannot work. A Status means that
// the coordinator itself could not work, for example on a damaged log.
absl::StatusOr<int> RunCoordinator(const CoordinatorOptions& options);

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_COORDINATOR_H_
