// The sources of a job's data section, one list whichever way the job names
// them, with their files found.

#ifndef MILLRACE_WORKER_DATA_SOURCES_H_
#define MILLRACE_WORKER_DATA_SOURCES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/job/job.h"
#include "worker/records/records.h"

namespace millrace {

struct SourceFile {
  DataFile file;
  RecordFormat format = RecordFormat::kText;
};

struct DataSource {
  std::string key;   // Its place in the job: "data.sources[1]".
  std::string name;  // Its patterns.
  double weight = 1;
  std::string column;
  std::string kind;  // DataSourceSpec's, as train_on.
  std::string train_on;
  std::vector<SourceFile> files;       // Files with records, in order.
  std::vector<std::string> indexed;    // Else: paths of .bin/.idx.
  std::vector<std::string> unmatched;  // Globs without a file.

  bool is_indexed() const { return !indexed.empty(); }
  bool is_preference() const { return kind == "preference"; }
  bool has_samples() const { return kind == "chat" || is_preference(); }
  int64_t num_bytes() const;
};

// None for random tokens. InvalidArgument or NotFound name the key and say what
// to change: no file, a name that does not say the format.
absl::StatusOr<std::vector<DataSource>> FindSources(const DataSpec& data);

}  // namespace millrace

#endif  // MILLRACE_WORKER_DATA_SOURCES_H_
