// Measures how much a GPU slows down when it computes and communicates at once.
// As in a step, a collective runs now and then beside a mix of ops.

#ifndef MILLRACE_WORKER_CUDA_MEASURE_OVERLAP_H_
#define MILLRACE_WORKER_CUDA_MEASURE_OVERLAP_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "base/ids.h"
#include "planner/learn/profile_request.h"
#include "planner/profile/profile.h"
#include "worker/cuda/measure/link_timer.h"
#include "worker/cuda/measure/op_timer.h"

namespace millrace {

// Measures both factors of planner/simulate/simulate_instructions.h, for NCCL
// or for copy engines. A collective counts from when it has multiprocessors,
// not from when it was ready, since the simulator adds the wait for the product
// under way (OverlapFactors::waits). With copy engines only the kernel at the
// collective's end waits so. The factor of compute with NCCL is at least that
// of short kernels beside a receive that waits. Without a large collective in
// the request (a reduce-scatter for NCCL, an all-gather for copy engines) it is
// all that is measured; other factors are 1. Collective; equal on all ranks.
// Replaces the timer's surroundings.
absl::StatusOr<OverlapFactors> MeasureOverlap(const ProfileRequest& request,
                                              int32_t num_ranks, Rank rank,
                                              bool by_copy_engines,
                                              CudaLinkTimer& links,
                                              CudaOpTimer& timer);

}  // namespace millrace

#endif  // MILLRACE_WORKER_CUDA_MEASURE_OVERLAP_H_
