// Measures the hardware profile of a machine's GPUs for a job, without agents
// and coordinator, and prints it as YAML:
//
//   measure_gpu JOB.yaml [seconds=30 shapes=160 warm=0 alone=0] [ranks=1 rank=0
//   store=FOLDER] [devices=0]
//
// One process a rank, each on the GPU of its number; more than one meet in
// `store`, a folder that they share and that is empty before. Rank 0 prints.
// `shapes`: most of products, attention and heads, each kind: few where only
// communication is wanted, for rows to add to another profile. `warm`: every
// call of an op meets the operands of the one before it. `alone`: ops are timed
// by themselves, not among those of a step. `devices`: ops of the layouts of so
// many GPUs, where that is more than `ranks`; communication stays that of
// `ranks`. So one GPU measures the ops of eight. Set
// CUDA_DEVICE_MAX_CONNECTIONS=32 for copy engines, as agents do.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <iostream>
#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "kernels/cuda/status.h"
#include "planner/job/job_file.h"
#include "planner/learn/profile_request.h"
#include "planner/profile/profile_file.h"
#include "worker/communicate/directory_rendezvous_store.h"
#include "worker/cuda/measure/profiler.h"
#include "worker/cuda/ops/kernel_cache.h"

namespace millrace {
namespace {

struct Settings {
  JobSpec job;
  int32_t seconds = 30;
  int32_t shapes = static_cast<int32_t>(kGpuProfileBudget.shapes_per_kind);
  int32_t warm = 0;
  int32_t alone = 0;
  int32_t ranks = 1;
  int32_t rank = 0;
  int32_t devices = 0;
  std::string store;
};

absl::StatusOr<Settings> ParseArguments(int argc, char** argv) {
  Settings s;
  if (argc < 2) {
    return absl::InvalidArgumentError(
        "usage: measure_gpu JOB.yaml [NAME=VALUE]..., see the top of its "
        "source");
  }
  ASSIGN_OR_RETURN(s.job, LoadJob(argv[1]));
  const std::map<std::string, int32_t*> numbers = {
      {"seconds", &s.seconds}, {"shapes", &s.shapes}, {"warm", &s.warm},
      {"alone", &s.alone},     {"ranks", &s.ranks},   {"rank", &s.rank},
      {"devices", &s.devices}};
  for (int i = 2; i < argc; ++i) {
    const std::pair<std::string, std::string> argument =
        absl::StrSplit(argv[i], absl::MaxSplits('=', 1));
    const auto number = numbers.find(argument.first);
    if (argument.first == "store") {
      s.store = argument.second;
    } else if (number == numbers.end() ||
               !absl::SimpleAtoi(argument.second, number->second)) {
      return absl::InvalidArgumentError(
          absl::StrCat(argv[i], ": expected NAME=VALUE of a known name"));
    }
  }
  if (s.shapes < 1) return absl::InvalidArgumentError("shapes: one at least");
  if (s.ranks > 1 && s.store.empty()) {
    return absl::InvalidArgumentError(
        "more than one rank: name a shared, empty folder by store=");
  }
  return s;
}

absl::Status Run(int argc, char** argv) {
  ASSIGN_OR_RETURN(const Settings s, ParseArguments(argc, argv));
  const JobSpec& job = s.job;
  RETURN_IF_ERROR(CudaStatus(cudaSetDevice(s.rank), "choose the GPU"));
  ProfileBudget budget = kGpuProfileBudget;
  budget.shapes_per_kind = static_cast<size_t>(s.shapes);
  ASSIGN_OR_RETURN(
      ProfileRequest request,
      BuildProfileRequest(job.model, job.training, s.ranks, s.ranks, budget));
  if (s.devices > s.ranks) {
    ASSIGN_OR_RETURN(ProfileRequest of_more,
                     BuildProfileRequest(job.model, job.training, s.devices,
                                         s.devices, budget));
    request.ops = std::move(of_more.ops);
    request.mixes = std::move(of_more.mixes);
  }
  ASSIGN_OR_RETURN(GemmAlgorithmTable algorithms, ShippedGemmAlgorithms());
  DirectoryRendezvousStore store(s.store);
  ASSIGN_OR_RETURN(
      HardwareProfile profile,
      MeasureCudaRequest(request,
                         {.precision = PrecisionOf(job.training.precision),
                          .num_ranks = s.ranks,
                          .ranks_per_host = s.ranks,
                          .rank = Rank{s.rank},
                          .store = &store,
                          .algorithms = std::move(algorithms),
                          .working_set_bytes = s.warm != 0 ? 1 : 0,
                          .has_surroundings = s.alone == 0,
                          .time_budget = absl::Seconds(s.seconds)}));
  if (s.rank != 0) return absl::OkStatus();
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
      .num_ranks = s.ranks,
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
