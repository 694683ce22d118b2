#include "worker/doctor/host_look.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "coordinator/objects/object_files.h"
#include "planner/job/job.h"
#include "planner/job/job_file.h"
#include "planner/job/object_path.h"
#include "worker/agent/host_job.h"
#include "worker/agent/network.h"
#include "worker/backend/agent_devices.h"
#include "worker/backend/cuda_backend.h"
#include "worker/data/hasher.h"
#include "worker/data/sources.h"
#include "worker/doctor/bucket_look.h"
#include "worker/doctor/gpu_health.h"
#include "worker/train/starting_weights.h"

namespace millrace {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

// A server that is busy for a moment is no fault; the look has to end.
constexpr absl::Duration kBucketPatience = absl::Seconds(5);

std::string LookText(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>()
                                                   : "";
}

void LookAtFolders(const Json& order, HostFacts* facts) {
  facts->folders.push_back(ReadFolder(kSharedMemory, "/dev/shm"));
  std::error_code error;
  const std::string temporary = fs::temp_directory_path(error).string();
  if (!error) {
    facts->folders.push_back(ReadFolder(kTemporaryFolder, temporary));
  } else {
    facts->failures.push_back(absl::StrCat(
        "temporary folder: ", error.message(), "; set TMPDIR to one"));
  }
  const auto folders = order.find("folders");
  if (folders == order.end() || !folders->is_array()) return;
  const std::string probe = LookText(order, "probe");
  for (const Json& asked : *folders) {
    if (!asked.is_object()) continue;
    FolderFacts folder =
        ReadFolder(LookText(asked, "purpose"), LookText(asked, "path"));
    const std::string probed = LookText(asked, "probed_path");
    folder.probed = !probed.empty();
    if (folder.probed) {
      folder.sees_probe = SeesProbe(probed, probe);
    }
    facts->folders.push_back(std::move(folder));
  }
}

void LookAtNetwork(const Json& order, const NetworkSpec& network,
                   HostFacts* facts) {
  const auto several = order.find("several_hosts");
  if (several == order.end() || *several != true) return;
  absl::StatusOr<std::vector<HostAddress>> addresses = HostAddresses();
  if (addresses.ok()) addresses = UsableAddresses(network, *addresses);
  if (addresses.ok()) {
    facts->addresses = *std::move(addresses);
    facts->packet_sizes = PacketSizes(facts->addresses);
  } else {
    facts->failures.push_back(std::string(addresses.status().message()));
  }
}

// Facts from our own GPU code: its libraries, and without a job what it would
// warn of.
absl::Status LookAtCuda(bool has_job, const HostShare& share,
                        HostFacts* facts) {
  ASSIGN_OR_RETURN(CudaBackend* const backend, LoadCudaBackend());
  ASSIGN_OR_RETURN(const CudaLibraryVersions versions,
                   backend->LibraryVersions());
  facts->runtime_cuda = versions.runtime;
  facts->nccl = versions.nccl;
  if (has_job) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::vector<CudaDeviceInfo> devices,
                   backend->ListDevices());
  facts->devices = std::max<int64_t>(
      1, static_cast<int64_t>(devices.size()) / std::max(1, share.num_agents));
  std::vector<std::string> warnings;
  ASSIGN_OR_RETURN(warnings,
                   backend->CheckHost(static_cast<int32_t>(devices.size())));
  for (std::string& warning : warnings) {
    facts->warnings.push_back(std::move(warning));
  }
  return absl::OkStatus();
}

void LookAtGpus(bool has_job, const HostShare& share, HostFacts* facts) {
  ReadGpuHealth(facts);
  if (facts->gpu_error.empty() && !facts->gpus.empty()) {
    if (const absl::Status status = LookAtCuda(has_job, share, facts);
        !status.ok()) {
      facts->gpu_error = std::string(status.message());
    }
  }
  // Devices of a job fail by themselves.
  if (!facts->gpu_error.empty() && !has_job) {
    facts->warnings.push_back(
        absl::StrCat("no job can train on its GPUs: ", facts->gpu_error));
  }
}

// The job's files, by name and size: to read them all would take too long.
absl::Status LookAtData(const DataSpec& data, HostFacts* facts) {
  if (data.synthetic) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::vector<DataSource> sources, FindSources(data));
  Hasher hasher;
  facts->data_files = 0;
  const auto add = [&](const std::string& path, int64_t num_bytes) {
    ++facts->data_files;
    facts->data_bytes += num_bytes;
    hasher.AddString(path);
    hasher.AddNumber(num_bytes);
  };
  for (const DataSource& source : sources) {
    for (const SourceFile& file : source.files) {
      add(file.file.path, file.file.size_bytes);
    }
    for (const std::string& path : source.indexed) {
      std::error_code unreadable;
      const auto num_bytes = fs::file_size(path, unreadable);
      add(path, unreadable ? 0 : static_cast<int64_t>(num_bytes));
    }
  }
  facts->data_names =
      absl::StrCat(absl::Hex(hasher.Digest(), absl::kZeroPad16));
  std::error_code not_there;
  if (data.tokenizer == "auto" || fs::exists(data.tokenizer, not_there)) {
    return absl::OkStatus();
  }
  return absl::NotFoundError(absl::StrCat("data.tokenizer ", data.tokenizer,
                                          " is not there; copy it"));
}

// The bucket in which the job keeps its checkpoints, and the one from which it
// goes on. Agents of one host would only slow each other down.
void LookAtBuckets(const Json& order, const CheckpointSpec& checkpoint,
                   const HostShare& share, HostFacts* facts) {
  if (share.agent_idx > 0) return;
  const ObjectFilesOptions options = {
      .place = {.endpoint = checkpoint.endpoint, .region = checkpoint.region},
      .patience = kBucketPatience};
  const std::string bucket = LookText(order, "bucket");
  if (!bucket.empty()) {
    facts->buckets.push_back(
        ProbeBucket(options, bucket,
                    absl::StrCat(LookText(order, "probe"), "-", facts->host)));
  }
  if (!IsObjectPath(checkpoint.resume)) return;
  const absl::Status found = LookForObjects(options, checkpoint.resume);
  if (!found.ok()) {
    facts->failures.push_back(
        absl::StrCat("checkpoint.resume: ", found.message()));
  }
}

// Finds what would stop the job on this host.
void LookAtJob(JobSpec job, const HostShare& share,
               const absl::StatusOr<JobSpec>& own_copy, HostFacts* facts) {
  const auto fail_by = [facts](const absl::Status& status) {
    if (!status.ok()) facts->failures.push_back(std::string(status.message()));
  };
  fail_by(CompareWithCopy(job, own_copy));
  const absl::StatusOr<AgentDevices> devices =
      FindAgentDevices(job.resources, share, &facts->warnings);
  fail_by(devices.status());
  facts->devices = devices.ok() ? devices->num_devices : 0;
  if (job.data.from.empty()) {
    fail_by(LookAtData(job.data, facts));
  } else if (job.data.from == facts->host) {
    HostFacts apart;  // Not to be compared: other hosts have none.
    fail_by(LookAtData(job.data, &apart));
  }
  fail_by(CheckStartingWeights(job));
}

}  // namespace

HostFacts LookAtHost(const Json& order, const HostShare& share,
                     const absl::StatusOr<JobSpec>& own_copy) {
  HostFacts facts = ReadHostFacts();
  facts.devices = 1;
  LookAtFolders(order, &facts);
  const std::string job_yaml = LookText(order, "job");
  const bool has_job = !job_yaml.empty();
  NetworkSpec network;
  if (has_job) {
    const absl::StatusOr<JobSpec> job = ParseJob(job_yaml, "agent 0's job");
    if (job.ok()) {
      network = job->network;
      LookAtJob(*job, share, own_copy, &facts);
      LookAtBuckets(order, job->checkpoint, share, &facts);
    } else {
      facts.failures.push_back(std::string(job.status().message()));
    }
  }
  LookAtNetwork(order, network, &facts);
  LookAtGpus(has_job, share, &facts);
  return facts;
}

}  // namespace millrace
