// The batches that a job's data section asks for.

#ifndef MILLRACE_WORKER_DATA_OPEN_BATCHES_H_
#define MILLRACE_WORKER_DATA_OPEN_BATCHES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/job/job.h"
#include "worker/data/batch_source.h"

namespace millrace {

// `prefixes`: PreparedData's. Errors are PackedDataset::Open()'s.
absl::StatusOr<std::unique_ptr<BatchSource>> OpenBatches(
    const JobSpec& job, const std::vector<std::string>& prefixes);

// The same, of data that is prepared first (prepare.h), without a progress
// line.
absl::StatusOr<std::unique_ptr<BatchSource>> PrepareAndOpenBatches(
    const JobSpec& job, int32_t num_threads);

}  // namespace millrace

#endif  // MILLRACE_WORKER_DATA_OPEN_BATCHES_H_
