#include "coordinator/cli/plan_profile.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "coordinator/planning.h"
#include "planner/learn/profile_request.h"
#include "planner/profile/host_size.h"
#include "planner/profile/prediction_interval.h"
#include "planner/profile/profile_file.h"
#include "planner/profile/shipped_profiles.h"
#include "planner/text/page.h"
#include "worker/backend/agent_devices.h"
#include "worker/backend/cuda_backend.h"
#include "worker/measure/machine.h"

namespace millrace {
namespace {

Here NoGpus(const Here& cpu) {
  return {.machine = absl::StrCat(cpu.machine, " (no GPU)"),
          .threads_per_device = [](int32_t) { return 1; }};
}

// The message where no profile is found: both ways to a plan.
std::string NoProfileText(const JobSpec& job, int32_t num_devices) {
  const std::vector<std::string> shipped = ShippedProfileNames();
  std::string text = absl::StrCat(
      "no hardware profile of this machine for this model and batch",
      num_devices > 0 ? absl::StrCat(" on ", num_devices, " devices") : "",
      "; two ways to a plan:\n",
      "  measure this machine:    millrace profile JOB\n"
      "  plan for other hardware: millrace plan JOB --profile NAME --devices ",
      num_devices > 0 ? absl::StrCat(num_devices) : "N");
  if (!shipped.empty()) {
    absl::StrAppend(
        &text, "\n",
        WrapLine(absl::StrCat("    NAME: ", absl::StrJoin(shipped, ", "),
                              "; or the path of a profile"),
                 10));
  }
  if (!job.resources.uses_cuda()) {
    absl::StrAppend(&text,
                    "\n    these are GPUs that train in bf16; this job trains "
                    "on CPUs in ",
                    job.training.precision);
  }
  return text;
}

// This machine's newest cached profile for the job's model and batch; with the
// wanted number of devices if one is given.
absl::StatusOr<HardwareProfile> FindCachedProfile(const JobSpec& job,
                                                  const Here& here,
                                                  int32_t num_devices) {
  std::optional<HardwareProfile> newest;
  for (const std::string& path :
       CachedProfilePaths({.machine = here.machine,
       .shape = ProfileShapeKey(job.model, job.training)})) {
    absl::StatusOr<HardwareProfile> profile = LoadProfile(path);
    // One that an older version wrote is as good as none.
    if (!profile.ok()) continue;
    const ProfileProvenance& provenance = profile->provenance;
    if (num_devices > 0 && provenance.num_ranks != num_devices) continue;
    if (!job.resources.uses_cuda() &&
        job.resources.threads_per_device.value_or(
            provenance.threads_per_device) != provenance.threads_per_device) {
      continue;
    }
    // ISO dates sort by time.
    if (!newest || newest->provenance.date < provenance.date) {
      newest = *std::move(profile);
    }
  }
  if (newest.has_value()) return *std::move(newest);
  return absl::NotFoundError(NoProfileText(job, num_devices));
}

// Empty unless the job's nodes have more devices than the profile's.
std::string SmallerNodesWarning(const JobSpec& job,
                                const HardwareProfile& profile,
                                int32_t num_devices) {
  const int32_t on_node =
      std::min(num_devices, job.resources.devices_per_agent.value_or(0));
  int32_t joined = profile.ranks_per_host;
  if (!profile.network.empty()) {
    // A rack of several hosts may be one domain; 0 joins all devices.
    const int32_t innermost = profile.network.front().devices;
    joined = innermost == 0 ? on_node : std::max(joined, innermost);
  }
  if (on_node <= joined) return "";
  return absl::StrCat(
      "the job's nodes have ", on_node,
      " devices (resources.devices_per_agent), but those of hardware profile '",
      profile.name, "' have ", joined,
      ", so the plan prices links inside a node as links between nodes; name a "
      "profile whose nodes have ",
      on_node, ", or measure one with millrace profile JOB");
}

std::string NotMeasuredWarning(const ModelSpec& model,
                               const HardwareProfile& profile) {
  const StepError error = ErrorFor(model, profile);
  return absl::StrFormat(
      "hardware profile '%s' is from data sheets, not measured on these "
      "devices; in 9 of 10 cases a step takes %.2f to %.2f times the "
      "prediction (%s)",
      profile.name, error.low, error.high, error.source);
}

}  // namespace

absl::StatusOr<Here> FindHere(const JobSpec& job) {
  ASSIGN_OR_RETURN(const Machine machine, DescribeMachine());
  const Here cpu = {
      .machine = machine.Fingerprint(),
      .threads_per_device = [machine, job](int32_t devices_on_host) {
        return job.resources.threads_per_device.value_or(
            ThreadsPerDevice(machine, devices_on_host));
      }};
  if (!job.resources.uses_cuda()) return cpu;
  // A machine without GPUs may plan for one that has them, but is not it.
  const absl::StatusOr<CudaBackend*> backend = LoadCudaBackend();
  if (!backend.ok()) return NoGpus(cpu);
  const absl::StatusOr<std::vector<CudaDeviceInfo>> gpus =
      (*backend)->ListDevices();
  if (!gpus.ok()) return NoGpus(cpu);
  ASSIGN_OR_RETURN(const AgentDevices devices,
                   ShareGpus({}, machine, *gpus, {}));
  return Here{.machine = devices.machine,
              .threads_per_device = [](int32_t) { return 1; }};
}

absl::StatusOr<HardwareProfile> FindProfileFor(const std::string& name,
                                               int32_t num_devices,
                                               const JobSpec& job,
                                               const Here& here) {
  if (name.empty() && job.profile == "auto") {
    return FindCachedProfile(job, here, num_devices);
  }
  absl::StatusOr<HardwareProfile> named =
      LoadNamedProfile(name.empty() ? job.profile : name);
  // A name that nothing has is the asker's slip.
  if (absl::IsNotFound(named.status())) {
    return absl::InvalidArgumentError(named.status().message());
  }
  RETURN_IF_ERROR(named.status());
  if (!job.resources.uses_cuda()) return named;
  const int32_t on_host = job.resources.devices_per_agent.value_or(0);
  return WithHostsOf(num_devices > 0 ? std::min(num_devices, on_host) : on_host,
                     *std::move(named));
}

std::vector<std::string> WarningsFor(const JobSpec& job, const Here& here,
                                     const HardwareProfile& profile,
                                     int32_t num_devices) {
  std::vector<std::string> warnings;
  if (profile.gemms.empty()) {
    warnings = {NotMeasuredWarning(job.model, profile)};
  } else {
    const int32_t on_host = std::min(num_devices, profile.ranks_per_host);
    const ProfileIdentity identity = {
        .machine = here.machine,
        .num_ranks = num_devices,
        .ranks_per_host = profile.ranks_per_host,
        .threads_per_device = here.threads_per_device(on_host)};
    warnings = job.resources.uses_cuda() ? GpuProfileWarnings(profile, identity)
                                         : ProfileWarnings(profile, identity);
  }
  std::string smaller = SmallerNodesWarning(job, profile, num_devices);
  if (!smaller.empty()) warnings.push_back(std::move(smaller));
  if (job.fault.spare_hosts > 0) {
    warnings.push_back(absl::StrCat(
        "fault.spare_hosts is ", job.fault.spare_hosts,
        ": all devices of this plan train, and the job takes so many hosts "
        "more, which are kept spare"));
  }
  return warnings;
}

}  // namespace millrace
