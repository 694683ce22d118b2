// A libnvidia-ml.so.1 for tests. Its GPUs and their values are lines of the
// file that MILLRACE_FAKE_NVML names, read at every call: "0000:1b:00.0
// clock_mhz 1980". A value that has no line is not supported. The types are
// those of NVIDIA's nvml.h.

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace {

constexpr int kSuccess = 0;
constexpr int kNotSupported = 3;
constexpr int kNotFound = 6;
constexpr int kUnknownError = 999;
constexpr unsigned kLinksListed = 64;

struct Line {
  std::string gpu;
  std::string key;
  long long value = 0;
};

std::vector<Line> Lines() {
  std::vector<Line> lines;
  const char* const path = std::getenv("MILLRACE_FAKE_NVML");
  if (path == nullptr) return lines;
  std::ifstream file(path);
  Line line;
  while (file >> line.gpu >> line.key >> line.value) lines.push_back(line);
  return lines;
}

// In order of their first lines.
std::vector<std::string> GpuNames() {
  std::vector<std::string> names;
  for (const Line& line : Lines()) {
    bool is_known = line.gpu == "all";
    for (const std::string& name : names) is_known |= name == line.gpu;
    if (!is_known) names.push_back(line.gpu);
  }
  return names;
}

std::optional<long long> Find(const std::string& gpu, const std::string& key) {
  for (const Line& line : Lines()) {
    if (line.gpu == gpu && line.key == key) return line.value;
  }
  return std::nullopt;
}

// A device handle is the GPU's name, which stays where it is.
void* HandleOf(const std::string& name) {
  static std::mutex mutex;
  static auto* const names = new std::set<std::string>;
  std::lock_guard<std::mutex> lock(mutex);
  return const_cast<char*>(names->insert(name).first->c_str());
}

template <typename Number>
int Answer(void* device, const std::string& key, Number* value) {
  const std::string gpu = static_cast<const char*>(device);
  if (const auto error = Find(gpu, "error"); error.has_value()) {
    return static_cast<int>(*error);
  }
  const std::optional<long long> found = Find(gpu, key);
  if (!found.has_value()) return kNotSupported;
  *value = static_cast<Number>(*found);
  return kSuccess;
}

}  // namespace

extern "C" {

int nvmlInit_v2() {
  return static_cast<int>(Find("all", "init").value_or(kSuccess));
}
int nvmlShutdown() { return kSuccess; }
const char* nvmlErrorString(int result) {
  return result == kUnknownError ? "Unknown Error" : "Driver Not Loaded";
}
int nvmlSystemGetDriverVersion(char* version, unsigned length) {
  strncpy(version, "580.1", length);
  return kSuccess;
}
int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  *version = 13000;
  return kSuccess;
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = static_cast<unsigned>(GpuNames().size());
  return kSuccess;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned idx, void** device) {
  const std::vector<std::string> names = GpuNames();
  if (idx >= names.size()) return kNotFound;
  *device = HandleOf(names[idx]);
  return kSuccess;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char* pci_bus_id, void** device) {
  for (const std::string& name : GpuNames()) {
    if (name != pci_bus_id) continue;
    *device = HandleOf(name);
    return kSuccess;
  }
  return kNotFound;
}
int nvmlDeviceGetName(void* device, char* name, unsigned length) {
  strncpy(name, static_cast<const char*>(device), length);
  return kSuccess;
}
// Where a line "sleep_ms" says so, the driver hangs for a while.
int nvmlDeviceGetClockInfo(void* device, int kind, unsigned* mhz) {
  const auto sleep_ms = Find(static_cast<const char*>(device), "sleep_ms");
  usleep(static_cast<useconds_t>(sleep_ms.value_or(0) * 1000));
  return kind == 1 ? Answer(device, "clock_mhz", mhz) : kNotSupported;
}
// The older name: drivers before 535 have no other.
int nvmlDeviceGetCurrentClocksThrottleReasons(void* device,
                                              unsigned long long* reasons) {
  return Answer(device, "throttle_reasons", reasons);
}
int nvmlDeviceGetTotalEccErrors(void* device, int kind, int counter,
                                unsigned long long* errors) {
  if (counter != 0) return kNotSupported;
  return Answer(device, kind == 0 ? "corrected_errors" : "uncorrected_errors",
                errors);
}
int nvmlDeviceGetRemappedRows(void* device, unsigned* by_corrected,
                              unsigned* by_uncorrected, unsigned* pending,
                              unsigned* failed) {
  *by_corrected = *by_uncorrected = 0;
  const int result = Answer(device, "remap_pending", pending);
  return result != kSuccess ? result : Answer(device, "remap_failed", failed);
}
int nvmlDeviceGetNvLinkState(void* device, unsigned link, int* active) {
  if (link >= kLinksListed) return kNotSupported;
  return Answer(device, "link" + std::to_string(link), active);
}
int nvmlDeviceGetNvLinkErrorCounter(void* device, unsigned link, int counter,
                                    unsigned long long* errors) {
  return Answer(
      device,
      "link" + std::to_string(link) + "_counter" + std::to_string(counter),
      errors);
}
int nvmlDeviceGetCurrPcieLinkWidth(void* device, unsigned* width) {
  return Answer(device, "pcie_width", width);
}

}  // extern "C"
