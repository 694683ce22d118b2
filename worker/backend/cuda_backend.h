// The door to GPUs. All code that needs the CUDA libraries lies in
// libmillrace_cuda.so beside the program, which is loaded when a job asks for
// backend cuda. So the program itself runs on machines without these libraries,
// and can say what is missing.

#ifndef MILLRACE_WORKER_BACKEND_CUDA_BACKEND_H_
#define MILLRACE_WORKER_BACKEND_CUDA_BACKEND_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/profile/profile.h"
#include "worker/communicate/rendezvous_store.h"
#include "worker/measure/profiler.h"
#include "worker/train/stepper.h"
#include "worker/train/trainer.h"

namespace millrace {

struct CudaDeviceInfo {
  std::string name;            // "NVIDIA H200".
  int32_t compute_capability;  // 90 for 9.0.
  int32_t num_multiprocessors;
  int64_t memory_bytes;
  // "0000:1b:00.0": the same GPU to the driver, the kernel's log and all
  // processes, whatever CUDA_VISIBLE_DEVICES says.
  std::string pci_bus_id;
};

// Versions of the libraries that the backend runs with, as "13.0" and "2.28.3".
struct CudaLibraryVersions {
  std::string runtime;  // CUDA's, which the backend is linked with.
  std::string nccl;     // The machine's.
};

// Errors are Unavailable where the machine lacks something: a driver, a newer
// one, a GPU. They say what to do.
class CudaBackend {
 public:
  virtual ~CudaBackend() = default;

  // The GPUs of this host in CUDA's order, at least one. Makes no context.
  virtual absl::StatusOr<std::vector<CudaDeviceInfo>> ListDevices() = 0;
  // Warnings about the first `num_devices` GPUs, a sentence each: for example
  // an NCCL version that is advised against, or missing peer access.
  // FailedPrecondition if a job cannot train on them. Makes no context.
  virtual absl::StatusOr<std::vector<std::string>> CheckHost(
      int32_t num_devices) = 0;

  // Makes no context and needs no GPU.
  virtual absl::StatusOr<CudaLibraryVersions> LibraryVersions() = 0;

  // Does for this process, before its first trainer is wanted, what that would
  // have to wait for: the context on device `device_idx`, cuBLASLt and NCCL.
  // The context's memory stays taken, some 500 MiB, as the trainer's would be.
  // An error is met again where the trainer is made. Thread-safe.
  virtual void WarmUp(int32_t device_idx) = 0;

  // Like CreateCpuTrainer(), on device `device_idx` of the host. Communicators
  // are NCCL's, made through `store`.
  virtual absl::StatusOr<std::unique_ptr<Trainer>> CreateTrainer(
      const TrainerOptions& options, int32_t device_idx,
      RendezvousStore* store) = 0;
  // Like CreateCudaStepper(), on device `device_idx` of the host.
  virtual absl::StatusOr<std::unique_ptr<Stepper>> CreateStepper(
      const StepperOptions& options, int32_t device_idx) = 0;
  // Like the function of this name in profiler.h. `options.communicators` may
  // be null. The provenance says one thread a device.
  virtual absl::StatusOr<HardwareProfile> MeasureHardwareProfile(
      const ProfilerOptions& options, int32_t device_idx,
      RendezvousStore* store) = 0;
};

// Returns the CudaBackend of this process and loads the library on the first
// call. The Unavailable error says where the library was looked for, or which
// library it needs is missing.
absl::StatusOr<CudaBackend*> LoadCudaBackend();

// The entry that the library exports and the program looks up. The pointer is
// valid for as long as the process lives.
struct CudaLibraryEntry {
  const char* version;      // Millrace's; must equal the program's.
  uint64_t interface_size;  // kCudaInterfaceSize; must be the program's.
  CudaBackend* backend;
};
// Differs between builds whose types do not fit each other, mostly.
inline constexpr uint64_t kCudaInterfaceSize =
    sizeof(TrainerOptions) +
    1'000'000 * (sizeof(ProfilerOptions) + 1000 * sizeof(HardwareProfile)) +
    1000 * (sizeof(Program) + sizeof(StepResult) + sizeof(CudaDeviceInfo));
inline constexpr char kCudaLibraryName[] = "libmillrace_cuda.so";
inline constexpr char kCudaLibraryEntryName[] = "MillraceCudaLibrary";
using CudaLibraryEntryFunction = const CudaLibraryEntry*();

}  // namespace millrace

#endif  // MILLRACE_WORKER_BACKEND_CUDA_BACKEND_H_
