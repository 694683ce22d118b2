// Chooses the hardware profile of a plan and says what to warn of.

#ifndef MILLRACE_COORDINATOR_CLI_PLAN_PROFILE_H_
#define MILLRACE_COORDINATOR_CLI_PLAN_PROFILE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/job/job.h"
#include "planner/profile/profile.h"

namespace millrace {

// Identifies the profiles of this machine.
struct Here {
  std::string machine;  // Fingerprint.
  // Returns the threads of a worker if `devices_on_host` share the host.
  std::function<int32_t(int32_t devices_on_host)> threads_per_device;
};

absl::StatusOr<Here> FindHere(const JobSpec& job);

// The shipped profile of this name, or the one of this path; with an empty one
// the job's, or this machine's newest cached one for the job's model and batch,
// measured on `num_devices` if that is not 0. One of fewer GPUs of a host than
// the job's hosts have is made one of such hosts (WithHostsOf()).
// InvalidArgument for a name that nothing has; NotFound, saying how to measure
// one and which are shipped, where there is none here.
absl::StatusOr<HardwareProfile> FindProfileFor(const std::string& name,
                                               int32_t num_devices,
                                               const JobSpec& job,
                                               const Here& here);

// A sentence for each way in which `profile` was not measured here, on so many
// devices, and one where its nodes are smaller than the job's.
std::vector<std::string> WarningsFor(const JobSpec& job, const Here& here,
                                     const HardwareProfile& profile,
                                     int32_t num_devices);

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_CLI_PLAN_PROFILE_H_
