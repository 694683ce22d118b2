#include "worker/agent/host_job.h"

#include <filesystem>
#include <iostream>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "planner/job/job_file.h"
#include "planner/job/job_keys.h"
#include "planner/job/object_path.h"
#include "worker/train/starting_weights.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

// A folder of the same name where this host's output goes.
absl::StatusOr<std::string> MakeOwnRunDirectory(
    const JobSpec& job, const std::string& of_coordinator) {
  std::error_code error;
  const fs::path output = fs::absolute(job.output_directory, error);
  if (error) {
    return absl::InternalError(absl::StrCat(
        "output.directory ", job.output_directory, ": ", error.message()));
  }
  const std::string path =
      (output / fs::path(of_coordinator).filename()).string();
  RETURN_IF_ERROR(MakeDirectories(path + "/logs"));
  RETURN_IF_ERROR(WriteFileAtomically(path + "/job.yaml", JobToYaml(job)));
  return path;
}

}  // namespace

absl::Status CompareWithCopy(const JobSpec& job,
                             const absl::StatusOr<JobSpec>& own_copy) {
  if (absl::IsNotFound(own_copy.status())) return absl::OkStatus();
  RETURN_IF_ERROR(own_copy.status());
  if (*own_copy == job) return absl::OkStatus();
  for (const JobKey& key : JobKeys()) {
    const std::string here = JobValueToYaml(key, *own_copy);
    const std::string there = JobValueToYaml(key, job);
    if (here == there) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "this host's copy of the job differs: ", key.path, " is ", here,
        " here and ", there,
        " on agent 0's host; give both the same file, or remove this copy: "
        "the job of agent 0 is sent to all"));
  }
  return absl::OkStatus();
}

bool SeesProbe(const std::string& folder, const std::string& probe) {
  const absl::StatusOr<std::string> content = ReadFile(folder + "/" + probe);
  return content.ok() && *content == probe;
}

absl::StatusOr<AgentDevices> FindDevices(const ResourceSpec& resources,
                                         const HostShare& share) {
  std::vector<std::string> warnings;
  ASSIGN_OR_RETURN(AgentDevices devices,
                   FindAgentDevices(resources, share, &warnings));
  for (const std::string& warning : warnings) {
    std::cerr << "millrace: warning: " << warning << std::endl;
  }
  return devices;
}

absl::StatusOr<HostJob> TakeJob(const protocol::Welcome& welcome,
                                const absl::StatusOr<JobSpec>& own_copy,
                                const std::optional<AgentDevices>& devices,
                                const HostShare& share) {
  HostJob result = {.num_agents = welcome.num_agents(),
                    .run = welcome.run_directory()};
  ASSIGN_OR_RETURN(result.job, ParseJob(welcome.job_yaml(), "agent 0's job"));
  RETURN_IF_ERROR(CompareWithCopy(result.job, own_copy));
  RETURN_IF_ERROR(CheckStartingWeights(result.job));
  ASSIGN_OR_RETURN(result.addresses, HostAddresses());
  if (devices.has_value()) {
    result.devices = *devices;
  } else {
    ASSIGN_OR_RETURN(result.devices, FindDevices(result.job.resources, share));
  }
  result.sees_run_directory =
      SeesProbe(welcome.run_directory(), welcome.probe());
  result.sees_checkpoints =
      welcome.checkpoint_directory().empty()
          ? result.sees_run_directory
          : IsObjectPath(welcome.checkpoint_directory()) ||
                SeesProbe(welcome.checkpoint_directory(), welcome.probe());
  if (result.sees_run_directory) {
    result.run_directory = welcome.run_directory();
  } else {
    ASSIGN_OR_RETURN(result.run_directory,
                     MakeOwnRunDirectory(result.job, welcome.run_directory()));
  }
  result.checkpoint_directory = welcome.checkpoint_directory().empty()
                                    ? result.run_directory + "/checkpoints"
                                    : welcome.checkpoint_directory();
  while (result.checkpoint_directory.size() > 1 &&
         result.checkpoint_directory.back() == '/') {
    result.checkpoint_directory.pop_back();
  }
  return result;
}

}  // namespace millrace
