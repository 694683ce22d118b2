// Jobs from the configurations of other frameworks.

#ifndef MILLRACE_PLANNER_FRAMEWORKS_IMPORT_H_
#define MILLRACE_PLANNER_FRAMEWORKS_IMPORT_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/frameworks/adapter.h"
#include "planner/frameworks/settings.h"
#include "planner/job/job.h"

namespace millrace {

struct ImportOptions {
  std::string name = "imported";
  // Instead of what the file says (of a Hugging Face model: its longest).
  std::optional<int64_t> sequence_length;
  // Hugging Face settings of the model, which DeepSpeed's have not, and for a
  // torchtitan flavor that is not known here.
  std::optional<Settings> model;
  // Of the whole job, where the configuration does not say so.
  std::optional<int32_t> num_devices;
  // Takes a model that ours is not without what it has besides, where that is
  // little work: biases, norms of heads, scaled rotary positions. Such a job is
  // for plans; trained, it would be another model.
  bool approximates = false;
};

struct ImportedJob {
  JobSpec job;
  // Where a value comes from, by key: a key of the source, a default of the
  // source, or an assumption. Keys without a remark have our default.
  std::map<std::string, std::string> remarks;
  // What the source says and the job cannot; one sentence each.
  std::vector<std::string> notes;
};

// InvalidArgument with all errors found, one a line, each "FILE:LINE: KEY: what
// was expected": a model that ours cannot be, values that contradict each
// other, and keys that are missing and have no default.
absl::StatusOr<ImportedJob> ImportJob(Framework framework,
                                      const Settings& settings,
                                      const ImportOptions& options);

// A job file: the notes as comments, then every key with its remark.
std::string ImportedJobToYaml(const ImportedJob& imported, Framework framework,
                              const std::string& file_name);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_FRAMEWORKS_IMPORT_H_
