#include "worker/backend/nvml.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/backend/shared_library.h"

namespace millrace {
namespace {

constexpr int kCorrected = 0;
constexpr int kUncorrected = 1;
constexpr int kSinceDriverLoaded = 0;
constexpr unsigned kMaxNvLinks = 36;
// Counters of a link: replays, recoveries, and checksum errors of flow control
// and of data.
constexpr int kNvLinkCounters[] = {0, 1, 2, 3};

void ReadMemoryErrors(const Nvml& nvml, Nvml::Device device, GpuSign* sign) {
  sign->corrected_errors = nvml.Get<unsigned long long>(
      "nvmlDeviceGetTotalEccErrors", device, kCorrected, kSinceDriverLoaded);
  sign->uncorrected_errors = nvml.Get<unsigned long long>(
      "nvmlDeviceGetTotalEccErrors", device, kUncorrected, kSinceDriverLoaded);
  unsigned by_corrected = 0;
  unsigned by_uncorrected = 0;
  unsigned pending = 0;
  unsigned failed = 0;
  if (nvml.Call("nvmlDeviceGetRemappedRows", device, &by_corrected,
                &by_uncorrected, &pending, &failed) == Nvml::kSuccess) {
    sign->remap_pending = pending;
    sign->remap_failed = failed;
  }
}

void ReadLinks(const Nvml& nvml, Nvml::Device device, GpuSign* sign) {
  for (unsigned link = 0; link < kMaxNvLinks; ++link) {
    const int64_t active =
        nvml.Get<int>("nvmlDeviceGetNvLinkState", device, link);
    if (active < 0) break;  // The links before this one are all there are.
    sign->nvlinks = link + 1;
    sign->active_nvlinks =
        std::max<int64_t>(0, sign->active_nvlinks) + (active != 0 ? 1 : 0);
    // A link that is down keeps its counts, so the sum does not fall.
    for (const int counter : kNvLinkCounters) {
      const int64_t errors = nvml.Get<unsigned long long>(
          "nvmlDeviceGetNvLinkErrorCounter", device, link, counter);
      if (errors < 0) continue;  // GPUs lack some of the counters.
      sign->nvlink_errors = std::max<int64_t>(0, sign->nvlink_errors) + errors;
    }
  }
  sign->pcie_width =
      nvml.Get<unsigned>("nvmlDeviceGetCurrPcieLinkWidth", device);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Nvml>> Nvml::Create(const std::string& library) {
  const absl::StatusOr<void*> loaded = LoadSharedLibrary(library);
  if (!loaded.ok()) {
    return absl::UnavailableError(
        absl::StrCat("the driver's library NVML cannot be loaded: ",
                     loaded.status().message()));
  }
  std::unique_ptr<Nvml> nvml(new Nvml(*loaded));
  const Result result = nvml->Call("nvmlInit_v2");
  nvml->begun_ = result == kSuccess;
  if (nvml->begun_) return nvml;
  const auto text = nvml->Find<const char*(Result)>("nvmlErrorString");
  return absl::UnavailableError(absl::StrCat(
      "the driver's library NVML does not start: ",
      text == nullptr ? absl::StrCat("error ", result) : text(result)));
}

Nvml::~Nvml() {
  if (begun_) Call("nvmlShutdown");
}

GpuSign Nvml::ReadSign(Device device) const {
  unsigned clock_mhz = 0;
  const Result result =
      Call("nvmlDeviceGetClockInfo", device, kMultiprocessorClock, &clock_mhz);
  if (result == kGpuIsLost) return {.present = 0};
  GpuSign sign = {.present = 1};
  if (result == kSuccess) sign.clock_mhz = clock_mhz;
  // The function's name changed with its words; its bits did not.
  sign.throttle_reasons =
      Get<unsigned long long>("nvmlDeviceGetCurrentClocksEventReasons", device);
  if (sign.throttle_reasons < 0) {
    sign.throttle_reasons = Get<unsigned long long>(
        "nvmlDeviceGetCurrentClocksThrottleReasons", device);
  }
  ReadMemoryErrors(*this, device, &sign);
  ReadLinks(*this, device, &sign);
  return sign;
}

GpuSign Nvml::ReadSignAt(const std::string& pci_bus_id) const {
  Device device = nullptr;
  const Result result =
      Call("nvmlDeviceGetHandleByPciBusId_v2", pci_bus_id.c_str(), &device);
  if (result == kNotFound || result == kGpuIsLost) return {.present = 0};
  return result == kSuccess ? ReadSign(device) : GpuSign{};
}

}  // namespace millrace
