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
#include "worker/data/prepare.h"

namespace millrace {

// PrefixesBySource() of the job's data. Errors are PackedDataset::Open()'s,
// with the source in front where there are several.
absl::StatusOr<std::unique_ptr<BatchSource>> OpenBatches(
    const JobSpec& job,
    const std::vector<std::vector<std::string>>& prefixes_by_source);

// The same, of data that is prepared first (prepare.h), without a progress
// line.
absl::StatusOr<std::unique_ptr<BatchSource>> PrepareAndOpenBatches(
    const JobSpec& job, int32_t num_threads);

// Describes how much the job's steps read from each source, as a table for
// people: records, tokens, weight, samples and epochs. Chat sources have a line
// below it about how records fill sequences, which are the table's samples.
// Errors are those of OpenBatches().
absl::StatusOr<std::string> DescribeEpochs(const JobSpec& job,
                                           const PreparedData& data);

// Lists of prefixes as arguments of a command line, "1:PREFIX" for one of the
// second source, and back. InvalidArgument for arguments that do not begin so.
std::vector<std::string> PrefixesToArguments(
    const std::vector<std::vector<std::string>>& prefixes_by_source);
absl::StatusOr<std::vector<std::vector<std::string>>> PrefixesFromArguments(
    const std::vector<std::string>& arguments);

}  // namespace millrace

#endif  // MILLRACE_WORKER_DATA_OPEN_BATCHES_H_
