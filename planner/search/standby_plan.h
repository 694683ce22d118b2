// Plans whether each worker of a job has a standby process: one that has
// prepared the worker's GPU and waits, to become the worker's next process at
// once (worker/agent/standby.h). Pure.

#ifndef MILLRACE_PLANNER_SEARCH_STANDBY_PLAN_H_
#define MILLRACE_PLANNER_SEARCH_STANDBY_PLAN_H_

#include <cstdint>

#include "planner/job/job.h"
#include "planner/profile/profile.h"

namespace millrace {

// Bytes of a GPU that a standby process takes at most: its context, and for a
// moment the communicator with which it prepares NCCL. 0 on CPUs.
int64_t StandbyBytes(const JobSpec& job, const HardwareProfile& profile);

// The memory of a device that layouts may take, of `device_bytes`: less where
// the job asks for standby processes (fault.standby_workers).
int64_t MemoryBesideStandby(const JobSpec& job, const HardwareProfile& profile,
                            int64_t device_bytes);

// Whether workers have standby processes, beside a layout that takes
// `layout_bytes` of a device's `device_bytes`. By fault.standby_workers: auto,
// on GPUs that have the memory left, if the profile knows how much it is.
bool KeepsStandbys(const JobSpec& job, const HardwareProfile& profile,
                   int64_t layout_bytes, int64_t device_bytes);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_SEARCH_STANDBY_PLAN_H_
