#include "planner/search/standby_plan.h"

namespace millrace {

int64_t StandbyBytes(const JobSpec& job, const HardwareProfile& profile) {
  if (!job.resources.uses_cuda()) return 0;
  const MemoryOverhead& overhead = profile.memory_overhead;
  return overhead.process + overhead.first_communicator;
}

int64_t MemoryBesideStandby(const JobSpec& job, const HardwareProfile& profile,
                            int64_t device_bytes) {
  return job.fault.standby_workers == "always"
             ? device_bytes - StandbyBytes(job, profile)
             : device_bytes;
}

bool KeepsStandbys(const JobSpec& job, const HardwareProfile& profile,
                   int64_t layout_bytes, int64_t device_bytes) {
  if (job.fault.standby_workers == "never") return false;
  if (job.fault.standby_workers == "always") return true;
  const int64_t num_bytes = StandbyBytes(job, profile);
  return num_bytes > 0 && layout_bytes + num_bytes <= device_bytes;
}

}  // namespace millrace
