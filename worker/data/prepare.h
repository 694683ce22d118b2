// Turns a job's data section into datasets that can be opened. Records are
// tokenized once per cache, indexed data is used as it is, and synthetic data
// needs nothing.

#ifndef MILLRACE_WORKER_DATA_PREPARE_H_
#define MILLRACE_WORKER_DATA_PREPARE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/job/job.h"
#include "worker/data/convert.h"

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
  int64_t shard_bytes = 0;  // ConvertOptions'.
};

struct PreparedSource {
  std::string key;   // "data.text" or "data.sources[1]".
  std::string name;  // Its patterns.
  double weight = 1;
  std::vector<std::string> prefixes;  // For PackedDataset, in order.
  int64_t num_tokens = 0;
  int64_t num_documents = 0;
};

struct PreparedData {
  std::vector<PreparedSource> sources;  // Empty for synthetic data.
  std::string tokenizer_path;           // Empty for indexed data.
  std::string end_of_document;          // TokenizerFiles' of that tokenizer.
  // Over all sources.
  int64_t num_tokens = 0;
  int64_t num_documents = 0;
  // Over all ids (records) or all index files and sizes (indexed): equal on all
  // nodes if they see the same data.
  uint64_t fingerprint = 0;
  bool from_cache = false;      // Nothing had to be done here.
  int64_t num_shards_made = 0;  // Token files written by this call.
  TextSkips skips;              // As they were when the text was encoded.
  BrokenRecords broken;
  int64_t num_empty = 0;               // Records left out.
  std::vector<std::string> unmatched;  // DescribeUnmatched() of each source.
};
// The prefixes that OpenBatches() takes.
std::vector<std::vector<std::string>> PrefixesBySource(
    const PreparedData& data);

// The folder used when DataSpec::cache_directory is empty:
// $XDG_CACHE_HOME/millrace or ~/.cache/millrace.
std::string DefaultCacheDirectory();

// Safe to call from several processes at once: they share the work. The tokens
// of a source lie in CACHE/data/KEY/, KEY hashing all that matters: paths,
// sizes and times of the files, the column, the tokenizer, vocab_size; of chat
// also template, special tokens, date and what is trained. A
// tokenizer that is given may have fewer pieces than vocab_size, not more; one
// that is trained lies in CACHE/tokenizers/KEY/.
//
// InvalidArgument or NotFound say what to change: no text, nothing readable,
// too little text for the vocabulary, too many broken records.
absl::StatusOr<PreparedData> PrepareData(const PrepareOptions& options);

}  // namespace millrace

#endif  // MILLRACE_WORKER_DATA_PREPARE_H_
