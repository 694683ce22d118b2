// Job files: YAML read strictly. Every error names file, line and key, says
// what was expected, and offers the nearest known key.

#ifndef MILLRACE_PLANNER_JOB_JOB_FILE_H_
#define MILLRACE_PLANNER_JOB_JOB_FILE_H_

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "planner/job/job.h"
#include "planner/job/job_keys.h"

namespace millrace {

// Returns InvalidArgument with all errors found, one a line, each
// "job.yaml:12: model.hiden: unknown key; did you mean 'hidden'?".
absl::StatusOr<JobSpec> ParseJob(absl::string_view yaml,
                                 const std::string& file_name);
// Likewise for a file that cannot be read.
absl::StatusOr<JobSpec> LoadJob(const std::string& path);

// The whole job as YAML with every default spelled out; ParseJob reads it back
// to an equal job. `remarks` are comments, by the path of the key they stand
// behind.
std::string JobToYaml(const JobSpec& job,
                      const std::map<std::string, std::string>& remarks = {});

// Sets one key from its text, as a job file would. False, with the job as it
// was, if the key does not accept the text.
bool SetJobValue(const JobKey& key, absl::string_view text, JobSpec* job);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_JOB_JOB_FILE_H_
