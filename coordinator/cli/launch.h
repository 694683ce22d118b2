// The common part of `run`, `agent` and `profile`: from a job file to a running
// agent.

#ifndef MILLRACE_COORDINATOR_CLI_LAUNCH_H_
#define MILLRACE_COORDINATOR_CLI_LAUNCH_H_

#include <cstdint>
#include <optional>
#include <string>

#include "coordinator/cli/meeting.h"

namespace millrace {

// The exit code where the command line or an input file is at fault.
inline constexpr int kBadInput = 2;

struct LaunchOptions {
  std::string job_file;
  // Instead of the job's resources.devices_per_agent.
  std::optional<int32_t> num_devices;
  bool profile_only = false;
  // The file for the measured profile if profile_only is set. Empty: the cache.
  std::string profile_output;
  bool tune = false;  // With profile_only: kernels too; for backend cuda.
  MeetingOptions meeting;
};

// Runs one agent until the job is over. Returns the process's exit code.
int Launch(LaunchOptions options);

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_CLI_LAUNCH_H_
