#include "worker/doctor/host_look.h"

#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "planner/job/job.h"
#include "worker/agent/network.h"
#include "worker/backend/cuda_backend.h"
#include "worker/doctor/gpu_health.h"

namespace millrace {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

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
      const absl::StatusOr<std::string> content =
          ReadFile(absl::StrCat(probed, "/", probe));
      folder.sees_probe = content.ok() && *content == probe;
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
  } else {
    facts->failures.push_back(std::string(addresses.status().message()));
  }
}

// What our own GPU code says: its libraries, and what it would warn of.
absl::Status LookAtCuda(HostFacts* facts) {
  ASSIGN_OR_RETURN(CudaBackend* const backend, LoadCudaBackend());
  ASSIGN_OR_RETURN(const CudaLibraryVersions versions,
                   backend->LibraryVersions());
  facts->runtime_cuda = versions.runtime;
  facts->nccl = versions.nccl;
  ASSIGN_OR_RETURN(const std::vector<CudaDeviceInfo> devices,
                   backend->ListDevices());
  facts->devices = static_cast<int64_t>(devices.size());
  std::vector<std::string> warnings;
  ASSIGN_OR_RETURN(warnings,
                   backend->CheckHost(static_cast<int32_t>(devices.size())));
  for (std::string& warning : warnings) {
    facts->warnings.push_back(std::move(warning));
  }
  return absl::OkStatus();
}

void LookAtGpus(HostFacts* facts) {
  ReadGpuHealth(facts);
  if (!facts->gpu_error.empty()) {
    facts->failures.push_back(
        absl::StrCat("GPUs cannot be used: ", facts->gpu_error));
  } else if (!facts->gpus.empty()) {
    if (const absl::Status status = LookAtCuda(facts); !status.ok()) {
      facts->gpu_error = std::string(status.message());
      facts->warnings.push_back(
          absl::StrCat("no job can train on its GPUs: ", status.message()));
    }
  }
}

}  // namespace

HostFacts LookAtHost(const Json& order, const HostShare& share) {
  HostFacts facts = ReadHostFacts();
  facts.devices = 1;
  static_cast<void>(share);
  LookAtFolders(order, &facts);
  LookAtNetwork(order, {}, &facts);
  LookAtGpus(&facts);
  return facts;
}

}  // namespace millrace
