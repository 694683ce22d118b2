// The content of libmillrace_cuda.so: the CudaBackend and the one name that it
// exports.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "planner/learn/profile_request.h"
#include "worker/backend/agent_devices.h"
#include "worker/backend/cuda_backend.h"
#include "worker/cuda/measure/profiler.h"
#include "worker/cuda/nccl/nccl_loaded_version.h"
#include "worker/cuda/nccl/nccl_version.h"
#include "worker/cuda/ops/kernel_choices.h"
#include "worker/cuda/train/stepper.h"
#include "worker/cuda/train/trainer.h"
#include "worker/measure/machine.h"

namespace millrace {
namespace {

// The oldest that the kernels are compiled for.
constexpr int32_t kOldestComputeCapability = 80;

// "13.0" of 13000.
std::string CudaVersionName(int version) {
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

// Names the driver's own shortcomings; `what` is what failed otherwise.
absl::Status DeviceStatus(cudaError_t error, const char* what) {
  switch (error) {
    case cudaSuccess:
      return absl::OkStatus();
    case cudaErrorInsufficientDriver: {
      int driver = 0;
      cudaDriverGetVersion(&driver);
      if (driver == 0) {
        return absl::UnavailableError(
            "there is no NVIDIA driver on this machine (libcuda.so.1 is "
            "missing); install one, in a container start it with the GPUs, or "
            "set resources.backend: cpu");
      }
      return absl::UnavailableError(absl::StrCat(
          "the NVIDIA driver is too old: it knows CUDA ",
          CudaVersionName(driver), ", this millrace is built with ",
          CudaVersionName(CUDART_VERSION), "; install a newer driver"));
    }
    case cudaErrorNoDevice: {
      const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
      return absl::UnavailableError(
          visible == nullptr
              ? "the NVIDIA driver finds no GPU; nvidia-smi may say why"
              : absl::StrCat("no GPU is visible with CUDA_VISIBLE_DEVICES='",
                             visible, "'; unset it or name GPUs that exist"));
    }
    default:
      return absl::UnavailableError(
          absl::StrCat(what, ": ", cudaGetErrorString(error),
                       "; nvidia-smi may say what is wrong with the driver or "
                       "the GPUs"));
  }
}

// Only what the host's GPUs are short of, not every pair.
absl::StatusOr<std::string> CheckPeerAccess(int32_t num_devices) {
  int32_t num_without = 0;
  std::string example;
  for (int32_t i = 0; i < num_devices; ++i) {
    for (int32_t j = i + 1; j < num_devices; ++j) {
      int can_access = 0;
      RETURN_IF_ERROR(DeviceStatus(cudaDeviceCanAccessPeer(&can_access, i, j),
                                   "asking for peer access"));
      if (can_access != 0) continue;
      if (num_without++ == 0) example = absl::StrCat(i, " and ", j);
    }
  }
  if (num_without == 0) return "";
  return absl::StrCat(
      num_without, " of ", num_devices * (num_devices - 1) / 2,
      " pairs of GPUs (the first: ", example,
      ") cannot reach each other's memory, so what they exchange goes through "
      "the host, much slower; in a virtual machine or container see whether "
      "peer access (NVLink, or ACS and IOMMU for PCIe) is switched off");
}

class LibraryBackend final : public CudaBackend {
 public:
  absl::StatusOr<std::vector<CudaDeviceInfo>> ListDevices() override {
    int count = 0;
    RETURN_IF_ERROR(
        DeviceStatus(cudaGetDeviceCount(&count), "counting the GPUs"));
    if (count == 0) return DeviceStatus(cudaErrorNoDevice, "counting the GPUs");
    std::vector<CudaDeviceInfo> devices;
    for (int i = 0; i < count; ++i) {
      cudaDeviceProp properties;
      RETURN_IF_ERROR(
          DeviceStatus(cudaGetDeviceProperties(&properties, i),
                       absl::StrCat("asking what GPU ", i, " is").c_str()));
      devices.push_back(
          {.name = properties.name,
           .compute_capability = properties.major * 10 + properties.minor,
           .num_multiprocessors = properties.multiProcessorCount,
           .memory_bytes = static_cast<int64_t>(properties.totalGlobalMem),
           .pci_bus_id =
               absl::StrFormat("%04x:%02x:%02x.0", properties.pciDomainID,
                               properties.pciBusID, properties.pciDeviceID)});
    }
    return devices;
  }

  absl::StatusOr<std::vector<std::string>> CheckHost(
      int32_t num_devices) override {
    ASSIGN_OR_RETURN(const std::vector<CudaDeviceInfo> devices, ListDevices());
    num_devices = std::min(num_devices, static_cast<int32_t>(devices.size()));
    for (int32_t i = 0; i < num_devices; ++i) {
      const int32_t capability = devices[i].compute_capability;
      if (capability >= kOldestComputeCapability) continue;
      return absl::FailedPreconditionError(absl::StrCat(
          "GPU ", i, " (", devices[i].name, ") has compute capability ",
          capability / 10, ".", capability % 10,
          "; training needs 8.0 (Ampere) or newer: choose others with "
          "CUDA_VISIBLE_DEVICES"));
    }
    std::vector<std::string> warnings;
    ASSIGN_OR_RETURN(const int nccl_version, LoadedNcclVersion());
    ASSIGN_OR_RETURN(const std::string about_nccl,
                     CheckNcclVersion(nccl_version));
    if (!about_nccl.empty()) warnings.push_back(about_nccl);
    ASSIGN_OR_RETURN(const std::string about_peers,
                     CheckPeerAccess(num_devices));
    if (!about_peers.empty()) warnings.push_back(about_peers);
    return warnings;
  }

  absl::StatusOr<CudaLibraryVersions> LibraryVersions() override {
    ASSIGN_OR_RETURN(const int nccl_version, LoadedNcclVersion());
    return CudaLibraryVersions{.runtime = CudaVersionName(CUDART_VERSION),
                               .nccl = NcclVersionName(nccl_version)};
  }

  void WarmUp(int32_t device_idx) override { WarmUpCuda(device_idx); }

  absl::StatusOr<std::unique_ptr<Trainer>> CreateTrainer(
      const TrainerOptions& options, int32_t device_idx,
      RendezvousStore* store) override {
    return CreateCudaTrainer(options, device_idx, store);
  }

  absl::StatusOr<std::unique_ptr<Stepper>> CreateStepper(
      const StepperOptions& options, int32_t device_idx) override {
    RETURN_IF_ERROR(DeviceStatus(cudaSetDevice(device_idx),
                                 absl::StrCat("GPU ", device_idx).c_str()));
    return CreateCudaStepper(options);
  }

  absl::StatusOr<HardwareProfile> MeasureHardwareProfile(
      const ProfilerOptions& options, int32_t device_idx,
      RendezvousStore* store) override {
    ASSIGN_OR_RETURN(const std::vector<CudaDeviceInfo> gpus, ListDevices());
    ASSIGN_OR_RETURN(const Machine host, DescribeMachine());
    ASSIGN_OR_RETURN(const AgentDevices devices,
                     ShareGpus(options.job.resources, host, gpus, {}));
    RETURN_IF_ERROR(DeviceStatus(cudaSetDevice(device_idx),
                                 absl::StrCat("GPU ", device_idx).c_str()));
    ASSIGN_OR_RETURN(
        const ProfileRequest request,
        BuildProfileRequest(options.job.model, options.job.training,
                            options.num_ranks, options.ranks_per_host,
                            kGpuProfileBudget, Backend::kCuda));
    ASSIGN_OR_RETURN(const std::string device, CurrentDeviceName());
    ASSIGN_OR_RETURN(CudaChoices shipped, ChoicesFor({}, device));
    InstallTuning(shipped.kernels);
    ASSIGN_OR_RETURN(
        HardwareProfile profile,
        MeasureCudaRequest(request, {.precision = options.job.precision(),
                                     .num_ranks = options.num_ranks,
                                     .ranks_per_host = options.ranks_per_host,
                                     .rank = options.rank,
                                     .store = store,
                                     .algorithms = std::move(shipped.products),
                                     .tune = !options.tune_command.empty(),
                                     .time_budget = options.time_budget}));
    profile.name = devices.machine;
    profile.provenance = {
        .machine = devices.machine,
        .description = devices.description,
        .version = MILLRACE_VERSION,
        .date = absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::Now(),
                                 absl::UTCTimeZone()),
        .num_ranks = options.num_ranks,
        .threads_per_device = 1};
    if (profile.tuning.is_given()) {
      profile.tuning.machine = profile.provenance.machine;
      profile.tuning.version = profile.provenance.version;
      profile.tuning.date = profile.provenance.date;
      profile.tuning.command = options.tune_command;
    }
    profile.device_memory_bytes =
        options.job.resources.memory_per_device_bytes.value_or(
            devices.memory_bytes);
    return profile;
  }
};

}  // namespace
}  // namespace millrace

extern "C" __attribute__((visibility("default")))
const millrace::CudaLibraryEntry*
MillraceCudaLibrary() {
  static millrace::LibraryBackend backend;
  static const millrace::CudaLibraryEntry entry = {
      .version = MILLRACE_VERSION,
      .interface_size = millrace::kCudaInterfaceSize,
      .backend = &backend};
  return &entry;
}
