#include "worker/doctor/gpu_health.h"

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/files.h"

namespace millrace {
namespace {

// NVML's numbers.
constexpr int kGpuTemperature = 0;
constexpr int kSlowdownThreshold = 1;
constexpr unsigned kNameBytes = 96;

struct NvmlMemory {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};

void ReadMemoryHealth(const Nvml& nvml, Nvml::Device device, GpuFacts* gpu) {
  int pending_mode = 0;
  int mode = 0;
  if (nvml.Call("nvmlDeviceGetEccMode", device, &mode, &pending_mode) ==
      Nvml::kSuccess) {
    gpu->ecc_enabled = mode;
  }
  NvmlMemory memory = {};
  if (nvml.Call("nvmlDeviceGetMemoryInfo", device, &memory) == Nvml::kSuccess) {
    gpu->memory_bytes = static_cast<int64_t>(memory.total);
    gpu->used_bytes = static_cast<int64_t>(memory.used);
  }
}

void ReadClocks(const Nvml& nvml, Nvml::Device device, GpuFacts* gpu) {
  gpu->max_clock_mhz = nvml.Get<unsigned>("nvmlDeviceGetMaxClockInfo", device,
                                          Nvml::kMultiprocessorClock);
  gpu->max_memory_clock_mhz = nvml.Get<unsigned>("nvmlDeviceGetMaxClockInfo",
                                                 device, Nvml::kMemoryClock);
  gpu->temperature_c =
      nvml.Get<unsigned>("nvmlDeviceGetTemperature", device, kGpuTemperature);
  gpu->slowdown_c = nvml.Get<unsigned>("nvmlDeviceGetTemperatureThreshold",
                                       device, kSlowdownThreshold);
  gpu->power_limit_mw =
      nvml.Get<unsigned>("nvmlDeviceGetEnforcedPowerLimit", device);
  gpu->default_power_limit_mw =
      nvml.Get<unsigned>("nvmlDeviceGetPowerManagementDefaultLimit", device);
}

GpuFacts ReadGpu(const Nvml& nvml, Nvml::Device device) {
  GpuFacts gpu;
  char name[kNameBytes] = {};
  nvml.Call("nvmlDeviceGetName", device, static_cast<char*>(name), kNameBytes);
  gpu.name = name;
  ReadMemoryHealth(nvml, device, &gpu);
  ReadClocks(nvml, device, &gpu);
  static_cast<GpuSign&>(gpu) = nvml.ReadSign(device);
  gpu.max_pcie_width =
      nvml.Get<unsigned>("nvmlDeviceGetMaxPcieLinkWidth", device);
  gpu.compute_mode = nvml.Get<int>("nvmlDeviceGetComputeMode", device);
  unsigned mig = 0;
  unsigned pending_mig = 0;
  if (nvml.Call("nvmlDeviceGetMigMode", device, &mig, &pending_mig) ==
      Nvml::kSuccess) {
    gpu.mig = mig;
  }
  return gpu;
}

}  // namespace

void ReadGpuHealth(HostFacts* facts, const std::string& library) {
  const absl::StatusOr<std::unique_ptr<Nvml>> loaded = Nvml::Create(library);
  if (!loaded.ok()) {
    // A device file without its library: a container that was given the one
    // and not the other.
    if (FileExists("/dev/nvidiactl")) {
      facts->gpu_error =
          absl::StrCat("there are GPUs, and ", loaded.status().message());
    }
    return;
  }
  const Nvml& nvml = **loaded;
  char version[kNameBytes] = {};
  nvml.Call("nvmlSystemGetDriverVersion", static_cast<char*>(version),
            kNameBytes);
  facts->driver = version;
  const int64_t cuda = nvml.Get<int>("nvmlSystemGetCudaDriverVersion_v2");
  if (cuda > 0) {
    facts->driver_cuda = absl::StrCat(cuda / 1000, ".", cuda % 1000 / 10);
  }
  const int64_t count = nvml.Get<unsigned>("nvmlDeviceGetCount_v2");
  for (int64_t i = 0; i < count; ++i) {
    Nvml::Device device = nullptr;
    const Nvml::Result result = nvml.Call("nvmlDeviceGetHandleByIndex_v2",
                                          static_cast<unsigned>(i), &device);
    if (result == Nvml::kSuccess) {
      facts->gpus.push_back(ReadGpu(nvml, device));
    } else {
      facts->failures.push_back(absl::StrCat(
          "GPU ", i, " does not answer (NVML error ", result,
          "); see dmesg for Xid lines, and reset the GPU or restart the host"));
    }
  }
}

}  // namespace millrace
