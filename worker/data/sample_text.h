// A sample of a job's text, to train a tokenizer on.

#ifndef MILLRACE_WORKER_DATA_SAMPLE_TEXT_H_
#define MILLRACE_WORKER_DATA_SAMPLE_TEXT_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/sources.h"

namespace millrace {

// Sentences from all over the sources' text, spread evenly, about 4 MiB of
// them. Reads everything, record by record; broken records are left out here
// and counted where the text is encoded. `progress`, which may be null, gets
// the files' bytes that are done. InvalidArgument if no record is usable text.
absl::StatusOr<std::vector<std::string>> SampleText(
    const std::vector<DataSource>& sources,
    const std::function<void(int64_t done_bytes)>& progress);

}  // namespace millrace

#endif  // MILLRACE_WORKER_DATA_SAMPLE_TEXT_H_
