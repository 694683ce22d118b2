// Opens the samples of one source, by what its records are.

#ifndef MILLRACE_WORKER_DATA_OPEN_SAMPLES_H_
#define MILLRACE_WORKER_DATA_OPEN_SAMPLES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/job/job.h"
#include "worker/data/batch_source.h"

namespace millrace {

struct OpenSamplesOptions {
  std::vector<std::string> prefixes;  // PreparedSource's.
  DataSourceSpec source;
  double validation_fraction = 0;
  uint64_t seed = 0;
};

// Errors as of PackedDataset::Open(), of chat as of SampleBatches::Open().
absl::StatusOr<std::unique_ptr<SampleDataset>> OpenSamples(
    const JobSpec& job, const OpenSamplesOptions& options);

}  // namespace millrace

#endif  // MILLRACE_WORKER_DATA_OPEN_SAMPLES_H_
