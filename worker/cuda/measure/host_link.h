// Times what snapshots of the training state do: downloads from a GPU to
// page-locked memory of its host.

#ifndef MILLRACE_WORKER_CUDA_MEASURE_HOST_LINK_H_
#define MILLRACE_WORKER_CUDA_MEASURE_HOST_LINK_H_

#include "absl/status/statusor.h"
#include "planner/profile/profile.h"
#include "worker/cuda/measure/link_timer.h"

namespace millrace {

// Downloads from the current device, some 50 ms of work. `links` is borrowed
// and null for one rank; with several, all call this together, download at
// once, and return the mean. A link of rate 0 where some host has no memory to
// lock.
absl::StatusOr<HostLink> MeasureHostLink(CudaLinkTimer* links);

}  // namespace millrace

#endif  // MILLRACE_WORKER_CUDA_MEASURE_HOST_LINK_H_
