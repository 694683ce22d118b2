// Turns the records of a source into token files in a folder of the cache.
//
// The source is cut into shards of about 64 MiB of its files. Each shard
// becomes a .bin/.idx pair and a summary, which is written last, so a shard is
// there wholly or not at all. Processes that convert the same source at once
// share the shards among them by locks; a process that was killed leaves those
// that it finished. Within a shard one thread reads while the others encode.

#ifndef MILLRACE_WORKER_DATA_CONVERT_H_
#define MILLRACE_WORKER_DATA_CONVERT_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/data/record_encoder.h"
#include "worker/data/sources.h"

namespace millrace {

// Records that could not be used.
struct BrokenRecords {
  int64_t count = 0;
  RecordPlace first;  // Where the first of them is, and why.
  std::string why;
};
// "3 broken records left out (first: a.jsonl:7: expected ...)"; empty if none.
std::string DescribeBroken(const BrokenRecords& broken);

// Says that `count` records are broken, more than `max_broken`.
absl::Status TooManyBroken(const std::string& source_key,
                           const BrokenRecords& example, int64_t count,
                           int64_t max_broken);

struct ConvertOptions {
  std::string folder;  // This source's alone; made if it is missing.
  int64_t vocab_size = 0;
  int32_t num_threads = 1;
  int64_t max_broken = 0;  // More broken records are an error.
  // Bytes of files; 0: 64 MiB, more for large sources.
  int64_t shard_bytes = 0;
  // May be null. The files' bytes that are done, whoever did them. Called from
  // the calling thread.
  std::function<void(int64_t done_bytes)> progress;
  std::function<void()> waiting;  // For another process. May be null.
};

struct Converted {
  std::vector<std::string> prefixes;  // Prefixes of the shards, in order.
  int64_t num_tokens = 0;
  int64_t num_documents = 0;
  uint64_t fingerprint = 0;  // Over all ids.
  TextSkips skips;           // As they were when the files were encoded.
  BrokenRecords broken;
  int64_t num_empty = 0;  // Records with an empty text, left out.
  // Where samples say which of their tokens are trained; else all are.
  std::optional<int64_t> num_trained_tokens;
  int64_t num_shards_made = 0;  // By this call; others were there.
};

// Writes a file of the folder that all processes write alike, one at a time.
absl::Status WriteShared(const std::string& folder, const std::string& path,
                         absl::string_view content);

// Reads the result of an earlier conversion from its folder. NotFound or
// DataLoss if it is not all there.
absl::StatusOr<Converted> LoadConverted(const std::string& folder);

// InvalidArgument names the source and what to change: no record in it, too
// many broken ones, no trained token. DataLoss names a damaged file.
absl::StatusOr<Converted> ConvertSource(const DataSource& source,
                                        const RecordEncoder& encoder,
                                        const ConvertOptions& options);

}  // namespace millrace

#endif  // MILLRACE_WORKER_DATA_CONVERT_H_
