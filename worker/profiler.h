// Measures a HardwareProfile by running the same ops, lanes and communicators
// that training runs.

#ifndef MILLRACE_WORKER_PROFILER_H_
#define MILLRACE_WORKER_PROFILER_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/ids.h"
#include "planner/profile.h"
#include "planner/profile_request.h"
#include "worker/communicator.h"

namespace millrace {

struct ProfilerOptions {
  ProfileRequest request;  // The same on all ranks.
  Rank rank;
  int32_t num_ranks = 1;
  int32_t ranks_per_host = 1;  // Neighbours in rank order share a host.
  int32_t num_threads = 1;     // Of the compute lane.
  CommunicatorFactory* communicators;  // Borrowed.
  // Aimed at; each thing asked for is measured once even if it runs out.
  absl::Duration time_budget = absl::Seconds(25);
};

// Collective over all ranks; all return the same tables. Ops are timed on rank
// 0 while the others wait, contention on the first host, communication on all
// ranks at once. Fills everything but name, provenance and device memory.
absl::StatusOr<HardwareProfile> MeasureProfile(const ProfilerOptions& options);

// Name, provenance and device memory of this machine, for a profile measured
// here and now. `memory_bytes`: of one device.
absl::Status FillProvenance(int32_t num_ranks, int32_t threads_per_device,
                            int64_t memory_bytes, HardwareProfile* profile);

}  // namespace millrace

#endif  // MILLRACE_WORKER_PROFILER_H_
