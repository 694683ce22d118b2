// NVIDIA's management library (NVML), which comes with the driver. It is loaded
// when asked for, and each of its functions may be missing: older drivers have
// fewer. Its numbers are part of its binary interface and are written down
// here, so that no header of CUDA is needed. No other file loads it.

#ifndef MILLRACE_WORKER_BACKEND_NVML_H_
#define MILLRACE_WORKER_BACKEND_NVML_H_

#include <dlfcn.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "fault/gpu_sign.h"

namespace millrace {

inline constexpr char kNvmlLibrary[] = "libnvidia-ml.so.1";

// The library from Create() to the end of this object. Calls may wait for the
// driver, for a minute if a GPU is in trouble: gpu_reader.h keeps the wait away
// from threads that must not stand still.
class Nvml {
 public:
  using Result = int;
  using Device = void*;
  static constexpr Result kSuccess = 0;
  static constexpr Result kNotFound = 6;
  static constexpr Result kGpuIsLost = 15;
  // Kinds of clocks.
  static constexpr int kMultiprocessorClock = 1;
  static constexpr int kMemoryClock = 2;

  // Loads `library` and starts it. Unavailable says what failed: there is no
  // driver, or it does not work.
  static absl::StatusOr<std::unique_ptr<Nvml>> Create(
      const std::string& library = kNvmlLibrary);
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  // Calls a function of the library. -1 if the library lacks it.
  template <typename... Arguments>
  Result Call(const char* name, Arguments... arguments) const {
    const auto function = Find<Result(Arguments...)>(name);
    return function == nullptr ? -1 : function(arguments...);
  }

  // The value that the function writes behind its last argument, or -1.
  template <typename Number, typename... Arguments>
  int64_t Get(const char* name, Arguments... arguments) const {
    Number value = 0;
    if (Call(name, arguments..., &value) != kSuccess) return -1;
    return static_cast<int64_t>(value);
  }

  // The sign of a device that NVML listed.
  GpuSign ReadSign(Device device) const;
  // The sign of the GPU at this place on the PCI bus ("0000:1b:00.0"), as CUDA
  // names it: the indexes of CUDA and NVML differ. `present` is 0 if the driver
  // finds no such GPU or has lost it.
  GpuSign ReadSignAt(const std::string& pci_bus_id) const;

 private:
  explicit Nvml(void* library) : library_(library) {}

  template <typename Function>
  Function* Find(const char* name) const {
    return reinterpret_cast<Function*>(dlsym(library_, name));
  }

  void* library_;
  bool begun_ = false;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_BACKEND_NVML_H_
