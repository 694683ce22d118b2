// The summaries of a conversion on disk: of a shard, beside its token files,
// and of the whole source.

#ifndef MILLRACE_WORKER_DATA_CONVERTED_SHARD_H_
#define MILLRACE_WORKER_DATA_CONVERTED_SHARD_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/data/convert.h"

namespace millrace {

struct ConvertedShard {
  int64_t num_tokens = 0;
  int64_t num_documents = 0;
  uint64_t fingerprint = 0;
  TextSkips skips;
  BrokenRecords broken;
  int64_t num_empty = 0;
  std::optional<int64_t> num_trained_tokens;  // Converted's.
};

// PREFIX.json, written after the token files. Loading it opens them too:
// NotFound or DataLoss if they are not there or do not fit it.
absl::Status SaveShard(const std::string& prefix, const ConvertedShard& shard);
absl::StatusOr<ConvertedShard> LoadShard(const std::string& prefix);

// `path` is for errors and for the folder of the shards.
std::string ConvertedToText(const Converted& converted);
absl::StatusOr<Converted> ConvertedFromText(const std::string& path,
                                            absl::string_view text);

}  // namespace millrace

#endif  // MILLRACE_WORKER_DATA_CONVERTED_SHARD_H_
