#include "worker/doctor/gpu_health.h"

#include <dlfcn.h>

#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "worker/backend/shared_library.h"

namespace millrace {
namespace {

// NVML's types and numbers.
using NvmlResult = int;
using NvmlDevice = void*;
constexpr NvmlResult kNvmlSuccess = 0;
constexpr int kUncorrected = 1;
constexpr int kCorrected = 0;
constexpr int kSinceDriverLoaded = 0;
constexpr int kMultiprocessorClock = 1;
constexpr int kMemoryClock = 2;
constexpr int kGpuTemperature = 0;
constexpr int kSlowdownThreshold = 1;
constexpr unsigned kMaxNvLinks = 36;
constexpr unsigned kNameBytes = 96;

struct NvmlMemory {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};

struct ReasonBit {
  int64_t bit;
  const char* name;
};
constexpr ReasonBit kSlowing[] = {
    {0x08, "the hardware halves its clocks"},
    {0x20, "heat (by the driver)"},
    {0x40, "heat (by the hardware)"},
    {0x80, "the power supply asks for less (power brake)"},
};

class Nvml {
 public:
  explicit Nvml(void* library) : library_(library) {}
  ~Nvml() {
    if (begun_) Call("nvmlShutdown");
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  // Why it does not work; empty if it does.
  std::string Begin() {
    const NvmlResult result = Call("nvmlInit_v2");
    begun_ = result == kNvmlSuccess;
    if (begun_) return "";
    const auto text = Find<const char*(NvmlResult)>("nvmlErrorString");
    return text == nullptr ? absl::StrCat("NVML error ", result)
                           : std::string(text(result));
  }

  // -1 if the library lacks the function.
  template <typename... Arguments>
  NvmlResult Call(const char* name, Arguments... arguments) const {
    const auto function = Find<NvmlResult(Arguments...)>(name);
    return function == nullptr ? -1 : function(arguments...);
  }

  // The value that the function gives for a device, or -1.
  template <typename Number, typename... Arguments>
  int64_t Get(const char* name, Arguments... arguments) const {
    Number value = 0;
    if (Call(name, arguments..., &value) != kNvmlSuccess) return -1;
    return static_cast<int64_t>(value);
  }

 private:
  template <typename Function>
  Function* Find(const char* name) const {
    return reinterpret_cast<Function*>(dlsym(library_, name));
  }

  void* library_;
  bool begun_ = false;
};

void ReadMemoryHealth(const Nvml& nvml, NvmlDevice device, GpuFacts* gpu) {
  int pending_mode = 0;
  int mode = 0;
  if (nvml.Call("nvmlDeviceGetEccMode", device, &mode, &pending_mode) ==
      kNvmlSuccess) {
    gpu->ecc_enabled = mode;
  }
  gpu->corrected_errors = nvml.Get<unsigned long long>(
      "nvmlDeviceGetTotalEccErrors", device, kCorrected, kSinceDriverLoaded);
  gpu->uncorrected_errors = nvml.Get<unsigned long long>(
      "nvmlDeviceGetTotalEccErrors", device, kUncorrected, kSinceDriverLoaded);
  unsigned by_corrected = 0;
  unsigned by_uncorrected = 0;
  unsigned pending = 0;
  unsigned failed = 0;
  if (nvml.Call("nvmlDeviceGetRemappedRows", device, &by_corrected,
                &by_uncorrected, &pending, &failed) == kNvmlSuccess) {
    gpu->remap_pending = pending;
    gpu->remap_failed = failed;
  }
  NvmlMemory memory = {};
  if (nvml.Call("nvmlDeviceGetMemoryInfo", device, &memory) == kNvmlSuccess) {
    gpu->memory_bytes = static_cast<int64_t>(memory.total);
    gpu->used_bytes = static_cast<int64_t>(memory.used);
  }
}

void ReadLinks(const Nvml& nvml, NvmlDevice device, GpuFacts* gpu) {
  for (unsigned link = 0; link < kMaxNvLinks; ++link) {
    const int64_t active =
        nvml.Get<int>("nvmlDeviceGetNvLinkState", device, link);
    if (active < 0) break;  // The links before this one are all there are.
    gpu->nvlinks = link + 1;
    gpu->active_nvlinks =
        (link == 0 ? 0 : gpu->active_nvlinks) + (active != 0 ? 1 : 0);
  }
  gpu->pcie_width =
      nvml.Get<unsigned>("nvmlDeviceGetCurrPcieLinkWidth", device);
  gpu->max_pcie_width =
      nvml.Get<unsigned>("nvmlDeviceGetMaxPcieLinkWidth", device);
}

void ReadClocks(const Nvml& nvml, NvmlDevice device, GpuFacts* gpu) {
  gpu->clock_mhz = nvml.Get<unsigned>("nvmlDeviceGetClockInfo", device,
                                      kMultiprocessorClock);
  gpu->max_clock_mhz = nvml.Get<unsigned>("nvmlDeviceGetMaxClockInfo", device,
                                          kMultiprocessorClock);
  gpu->max_memory_clock_mhz =
      nvml.Get<unsigned>("nvmlDeviceGetMaxClockInfo", device, kMemoryClock);
  // The function's name changed with its words; its bits did not.
  gpu->throttle_reasons = nvml.Get<unsigned long long>(
      "nvmlDeviceGetCurrentClocksEventReasons", device);
  if (gpu->throttle_reasons < 0) {
    gpu->throttle_reasons = nvml.Get<unsigned long long>(
        "nvmlDeviceGetCurrentClocksThrottleReasons", device);
  }
  gpu->temperature_c =
      nvml.Get<unsigned>("nvmlDeviceGetTemperature", device, kGpuTemperature);
  gpu->slowdown_c = nvml.Get<unsigned>("nvmlDeviceGetTemperatureThreshold",
                                       device, kSlowdownThreshold);
  gpu->power_limit_mw =
      nvml.Get<unsigned>("nvmlDeviceGetEnforcedPowerLimit", device);
  gpu->default_power_limit_mw =
      nvml.Get<unsigned>("nvmlDeviceGetPowerManagementDefaultLimit", device);
}

GpuFacts ReadGpu(const Nvml& nvml, NvmlDevice device) {
  GpuFacts gpu;
  char name[kNameBytes] = {};
  nvml.Call("nvmlDeviceGetName", device, static_cast<char*>(name), kNameBytes);
  gpu.name = name;
  ReadMemoryHealth(nvml, device, &gpu);
  ReadClocks(nvml, device, &gpu);
  ReadLinks(nvml, device, &gpu);
  gpu.compute_mode = nvml.Get<int>("nvmlDeviceGetComputeMode", device);
  unsigned mig = 0;
  unsigned pending_mig = 0;
  if (nvml.Call("nvmlDeviceGetMigMode", device, &mig, &pending_mig) ==
      kNvmlSuccess) {
    gpu.mig = mig;
  }
  return gpu;
}

}  // namespace

void ReadGpuHealth(HostFacts* facts) {
  const absl::StatusOr<void*> library = LoadSharedLibrary("libnvidia-ml.so.1");
  if (!library.ok()) {
    // A device file without its library: a container that was given the one
    // and not the other.
    if (FileExists("/dev/nvidiactl")) {
      facts->gpu_error = absl::StrCat(
          "there are GPUs, and the driver's library NVML cannot be loaded: ",
          library.status().message());
    }
    return;
  }
  Nvml nvml(*library);
  if (const std::string error = nvml.Begin(); !error.empty()) {
    if (FileExists("/dev/nvidiactl")) facts->gpu_error = "NVML: " + error;
    return;
  }
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
    NvmlDevice device = nullptr;
    const NvmlResult result = nvml.Call("nvmlDeviceGetHandleByIndex_v2",
                                        static_cast<unsigned>(i), &device);
    if (result == kNvmlSuccess) {
      facts->gpus.push_back(ReadGpu(nvml, device));
    } else {
      facts->failures.push_back(absl::StrCat(
          "GPU ", i, " does not answer (NVML error ", result,
          "); see dmesg for Xid lines, and reset the GPU or restart the host"));
    }
  }
}

std::string SlowingReasons(int64_t throttle_reasons) {
  std::string text;
  if (throttle_reasons < 0) return text;
  for (const ReasonBit& reason : kSlowing) {
    if ((throttle_reasons & reason.bit) == 0) continue;
    absl::StrAppend(&text, text.empty() ? "" : ", ", reason.name);
  }
  return text;
}

}  // namespace millrace
