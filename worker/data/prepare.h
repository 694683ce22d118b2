// Turns a job's data section into datasets that can be opened. Text is
// tokenized once per machine into a cache, indexed data is used as it is, and
// synthetic data needs nothing.

#ifndef MILLRACE_WORKER_DATA_PREPARE_H_
#define MILLRACE_WORKER_DATA_PREPARE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/job/job.h"
#include "worker/records/data_files.h"

namespace millrace {

enum class PrepareStage : uint8_t {
  kWaiting,            // For another process that prepares the same data.
  kReading,            // Looking through the text.
  kTrainingTokenizer,  // done_bytes stays zero.
  kEncoding,
};
const char* PrepareStageName(PrepareStage stage);

struct PrepareProgress {
  PrepareStage stage;
  int64_t done_bytes;
  int64_t total_bytes;
};

struct PrepareOptions {
  DataSpec data;
  int64_t vocab_size = 0;
  int32_t num_threads = 1;
  // May be null. Called from the calling thread.
  std::function<void(const PrepareProgress&)> progress;
};

struct PreparedData {
  // Prefixes for PackedDataset, in order; empty for synthetic data.
  std::vector<std::string> prefixes;
  std::string tokenizer_path;  // Empty for indexed data.
  int64_t num_tokens = 0;
  int64_t num_documents = 0;
  // Over all ids (text) or all index files and sizes (indexed): equal on all
  // nodes if they see the same data.
  uint64_t fingerprint = 0;
  bool from_cache = false;  // Nothing had to be done.
  TextSkips skips;          // As they were when the text was encoded.
  std::vector<std::string> unmatched;  // Globs of data.text without a file.
};

// The folder used when DataSpec::cache_directory is empty:
// $XDG_CACHE_HOME/millrace or ~/.cache/millrace.
std::string DefaultCacheDirectory();

// Safe to call from several processes at once: one does the work, the others
// wait for it. Text lies in CACHE/data/KEY/, KEY hashing all that matters:
// paths, sizes and times of the files, the tokenizer, vocab_size, max_bytes.
// A tokenizer that is given may have fewer pieces than vocab_size, not more.
//
// InvalidArgument or NotFound say what to change: no text, nothing readable,
// too little text for the vocabulary.
absl::StatusOr<PreparedData> PrepareData(const PrepareOptions& options);

}  // namespace millrace

#endif  // MILLRACE_WORKER_DATA_PREPARE_H_
