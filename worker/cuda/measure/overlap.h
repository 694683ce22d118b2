// What computing and communicating at once cost a GPU, measured as steps do it:
// now and then a collective, beside the mix of ops that a step consists of.

#ifndef MILLRACE_WORKER_CUDA_MEASURE_OVERLAP_H_
#define MILLRACE_WORKER_CUDA_MEASURE_OVERLAP_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "planner/learn/profile_request.h"
#include "planner/profile/profile.h"
#include "worker/cuda/measure/link_timer.h"
#include "worker/cuda/measure/op_timer.h"

namespace millrace {

// Of what NCCL does, or copy engines do. Both factors as
// planner/simulate/simulate_instructions.h uses them: from when a collective
// has multiprocessors, not from when it was ready, since the simulator makes it
// wait for the product under way (OverlapFactors::waits; of what copy engines
// do, at its end). 1 and 1 where the request has no reduce-scatter, of copy
// engines no all-gather, that moves much. Collective; equal on all ranks.
// Replaces the timer's surroundings.
absl::StatusOr<OverlapFactors> MeasureOverlap(const ProfileRequest& request,
                                              int32_t num_ranks,
                                              bool by_copy_engines,
                                              CudaLinkTimer& links,
                                              CudaOpTimer& timer);

}  // namespace millrace

#endif  // MILLRACE_WORKER_CUDA_MEASURE_OVERLAP_H_
