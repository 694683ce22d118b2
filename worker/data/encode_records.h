// Encodes the records of one shard as token files: one thread reads, several
// parse and encode, the documents are written in the order of the records.
// Where the encoder marks what is trained, the files are those of SampleWriter.

#ifndef MILLRACE_WORKER_DATA_ENCODE_RECORDS_H_
#define MILLRACE_WORKER_DATA_ENCODE_RECORDS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/data/converted_shard.h"
#include "worker/data/record_encoder.h"
#include "worker/records/records.h"

namespace millrace {

struct EncodeOptions {
  std::string prefix;      // The token files'.
  std::string source_key;  // For messages.
  int64_t vocab_size = 0;
  int32_t num_threads = 1;
  int64_t num_broken_before = 0;  // In other shards.
  int64_t max_broken = 0;
  std::function<void(int64_t)> progress;  // Bytes of records; may be null.
};

// InvalidArgument names the first broken record if there are too many.
absl::StatusOr<ConvertedShard> EncodeRecords(
    const std::vector<RecordPart>& parts, const RecordEncoder& encoder,
    const EncodeOptions& options);

}  // namespace millrace

#endif  // MILLRACE_WORKER_DATA_ENCODE_RECORDS_H_
