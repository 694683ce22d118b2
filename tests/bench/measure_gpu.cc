// Measures the hardware profile of one GPU for a job, without agents and
// coordinator, and prints it as YAML:
//
//   measure_gpu JOB.yaml seconds=30 > profile.yaml

#include <cuda_runtime_api.h>

#include <iostream>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "kernels/cuda/status.h"
#include "planner/job_file.h"
#include "planner/profile_file.h"
#include "planner/profile_request.h"
#include "worker/cuda/cuda_kernel_cache.h"
#include "worker/cuda/cuda_profiler.h"

namespace millrace {
namespace {

absl::Status Run(int argc, char** argv) {
  int32_t seconds = 30;
  if (argc < 2 || argc > 3 ||
      (argc == 3 && !(absl::StartsWith(argv[2], "seconds=") &&
                      absl::SimpleAtoi(argv[2] + 8, &seconds)))) {
    return absl::InvalidArgumentError(
        "usage: measure_gpu JOB.yaml [seconds=30]");
  }
  ASSIGN_OR_RETURN(const JobSpec job, LoadJob(argv[1]));
  ASSIGN_OR_RETURN(
      const ProfileRequest request,
      BuildProfileRequest(job.model, job.training, 1, kGpuProfileBudget));
  ASSIGN_OR_RETURN(GemmAlgorithmTable algorithms, ShippedGemmAlgorithms());
  ASSIGN_OR_RETURN(
      HardwareProfile profile,
      MeasureCudaRequest(request,
                         {.precision = PrecisionOf(job.training.precision),
                          .algorithms = std::move(algorithms),
                          .time_budget = absl::Seconds(seconds)}));
  cudaDeviceProp properties;
  RETURN_IF_ERROR(CudaStatus(cudaGetDeviceProperties(&properties, 0),
                             "ask what the GPU is"));
  profile.name = properties.name;
  profile.provenance = {
      .machine = properties.name,
      .description = properties.name,
      .version = MILLRACE_VERSION,
      .date = absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::Now(),
                               absl::UTCTimeZone()),
      .num_ranks = 1,
      .threads_per_device = 1};
  profile.device_memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  std::cout << ProfileToYaml(profile);
  return absl::OkStatus();
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  const absl::Status status = millrace::Run(argc, argv);
  if (status.ok()) return 0;
  std::cerr << status << "\n";
  return 1;
}
