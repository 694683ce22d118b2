// The two steps of PrepareData(): sampling text to train the tokenizer on, and
// encoding all text as tokens.

#ifndef MILLRACE_WORKER_DATA_ENCODE_TEXT_H_
#define MILLRACE_WORKER_DATA_ENCODE_TEXT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/data/indexed_dataset.h"
#include "worker/data/prepare.h"
#include "worker/records/data_files.h"
#include "worker/data/tokenizer.h"

namespace millrace {

int64_t TotalBytes(const std::vector<DataFile>& files);

// Sentences from all over the text, spread evenly, about 4 MiB of them. Reads
// one file at a time. InvalidArgument if no file is usable text.
absl::StatusOr<std::vector<std::string>> SampleText(
    const std::vector<DataFile>& files, const PrepareOptions& options);

// Writes each usable file as a document, in order, encoding on
// options.num_threads threads. Fills the counts, fingerprint and skips of
// `data`. InvalidArgument if no file is usable text.
absl::Status EncodeTextFiles(const std::vector<DataFile>& files,
                             const Tokenizer& tokenizer,
                             const PrepareOptions& options,
                             IndexedDatasetWriter* writer, PreparedData* data);

}  // namespace millrace

#endif  // MILLRACE_WORKER_DATA_ENCODE_TEXT_H_
