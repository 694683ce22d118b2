// The batches that a job's data section asks for.

#ifndef MILLRACE_WORKER_DATA_OPEN_BATCHES_H_
#define MILLRACE_WORKER_DATA_OPEN_BATCHES_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/job.h"
#include "worker/data/batch_source.h"

namespace millrace {

// `prefixes`: PreparedData's. Errors are PackedDataset::Open()'s.
absl::StatusOr<std::unique_ptr<BatchSource>> OpenBatches(
    const JobSpec& job, const std::vector<std::string>& prefixes);

}  // namespace millrace

#endif  // MILLRACE_WORKER_DATA_OPEN_BATCHES_H_
