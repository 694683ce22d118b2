// Measures a HardwareProfile of GPUs by running the same ops, graphs and
// communicators that training runs.

#ifndef MILLRACE_WORKER_CUDA_MEASURE_PROFILER_H_
#define MILLRACE_WORKER_CUDA_MEASURE_PROFILER_H_

#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/ids.h"
#include "kernels/gemm/gemm_algorithm_table.h"
#include "planner/layout/layout.h"
#include "planner/learn/profile_request.h"
#include "planner/profile/profile.h"
#include "worker/communicate/rendezvous_store.h"
#include "worker/cuda/measure/op_timer.h"

namespace millrace {

struct CudaProfilerOptions {
  Precision precision = Precision::kBfloat16;
  int32_t num_ranks = 1;
  int32_t ranks_per_host = 1;
  Rank rank{0};
  RendezvousStore* store = nullptr;  // Borrowed; null for one rank.
  GemmAlgorithmTable algorithms;  // The products' algorithms, as in training.
  // Rank 0 measures kernels' choices first and takes its times with them.
  bool tune = false;
  // Bytes of operands that an op is timed on in turn; 0: several times the
  // cache. For benches.
  int64_t working_set_bytes = 0;
  bool has_surroundings = true;  // False: each op by itself; for benches.
  // The time to aim at. Every shape is measured at least once, even if it runs
  // out.
  absl::Duration time_budget = absl::Seconds(150);
};

// Surrounds what the timer measures by the last of the mixes that fits the
// device; by nothing if none does.
absl::Status SurroundByLargest(std::span<const StepMix> mixes,
                               CudaOpTimer& timer);

// Measures on the current device. Collective over all ranks. All return equal
// tables; only rank 0 returns the tuning, without its provenance.
//
// Ops are timed on rank 0 while the others wait, contention on the first host,
// communication on all ranks at once. Ops whose operands do not fit the device
// are left out. Times of ops exclude launch_overhead_s, the time of the
// smallest op in a graph.
absl::StatusOr<HardwareProfile> MeasureCudaRequest(
    const ProfileRequest& request, const CudaProfilerOptions& options);

}  // namespace millrace

#endif  // MILLRACE_WORKER_CUDA_MEASURE_PROFILER_H_
