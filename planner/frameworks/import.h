// Makes jobs from the configurations of other frameworks.

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
  // Used instead of the configuration's length. A Hugging Face model's length
  // is the longest that it allows.
  std::optional<int64_t> sequence_length;
  // Hugging Face settings of the model. DeepSpeed's configurations have none,
  // and a torchtitan flavor may be unknown here.
  std::optional<Settings> model;
  // Devices of the whole job, if the configuration does not say so.
  std::optional<int32_t> num_devices;
  // Accepts a model with parts that ours lacks and that are little work, and
  // leaves them out: biases, norms of heads, scaled rotary positions. Such a
  // job is only for plans, since training it would train another model.
  bool approximates = false;
  // The model is to be trained from its weights: every setting that could
  // change what it computes must be known. Others than those and a few that
  // never matter are errors.
  bool is_exact = false;
};

struct ImportedJob {
  JobSpec job;
  // Says of each key where its value comes from: a key of the source, a default
  // of the source, or an assumption. Keys without a remark have our default.
  std::map<std::string, std::string> remarks;
  // Settings of the source that the job cannot express, one sentence each.
  std::vector<std::string> notes;
};

// Returns InvalidArgument with all errors found, one a line, each "FILE:LINE:
// KEY: what was expected". Errors are a model that ours cannot be, values that
// contradict each other, and missing keys without a default.
absl::StatusOr<ImportedJob> ImportJob(Framework framework,
                                      const Settings& settings,
                                      const ImportOptions& options);

// Writes a job file: the notes as comments, then every key with its remark.
std::string ImportedJobToYaml(const ImportedJob& imported, Framework framework,
                              const std::string& file_name);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_FRAMEWORKS_IMPORT_H_
