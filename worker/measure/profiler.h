// Measures a HardwareProfile by running the same ops, lanes and communicators
// that training runs.

#ifndef MILLRACE_WORKER_MEASURE_PROFILER_H_
#define MILLRACE_WORKER_MEASURE_PROFILER_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/ids.h"
#include "planner/job/job.h"
#include "planner/learn/profile_request.h"
#include "planner/profile/profile.h"
#include "worker/communicate/communicator.h"

namespace millrace {

struct ProfilerOptions {
  JobSpec job;  // The shapes of its layouts are measured.
  int32_t num_ranks = 1;
  int32_t ranks_per_host = 1;  // Neighbours in rank order share a host.
  Rank rank;
  int32_t num_threads = 1;                       // In the compute lane.
  CommunicatorFactory* communicators = nullptr;  // Borrowed.
  // If not empty, a GPU's kernels are tuned first, into the profile's tuning.
  // Its provenance names this command.
  std::string tune_command;
  // Aimed at. Every shape is measured at least once, even if it runs out.
  absl::Duration time_budget = absl::Seconds(20);
};

// Collective over all ranks; all return equal tables. Ops are timed on rank 0
// while the others wait, contention on the first host, communication on all
// ranks at once. Provenance and memory are those of the calling rank's machine.
absl::StatusOr<HardwareProfile> MeasureHardwareProfile(
    const ProfilerOptions& options);

// The tables alone, for a request of one's own.
absl::StatusOr<HardwareProfile> MeasureRequest(const ProfileRequest& request,
                                               const ProfilerOptions& options);

}  // namespace millrace

#endif  // MILLRACE_WORKER_MEASURE_PROFILER_H_
