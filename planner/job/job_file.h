// Job files: YAML read strictly. Every error names file, line and key, says
// what was expected, and offers the nearest known key.

#ifndef MILLRACE_PLANNER_JOB_JOB_FILE_H_
#define MILLRACE_PLANNER_JOB_JOB_FILE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "planner/job/job.h"
#include "planner/job/job_keys.h"

namespace millrace {

// The value that the folder of model.from gives a key of the job, and the place
// that states it: "llama/config.json:5: hidden_size".
struct FolderValue {
  std::string value;
  std::string place;
};
using FolderModel = std::map<std::string, FolderValue>;  // By the key's path.

// Reads the folder's model. `sequence_length`: the job's, if it gives one.
using FolderReader = std::function<absl::StatusOr<FolderModel>(
    const std::string& folder, std::optional<int64_t> sequence_length)>;

// Returns InvalidArgument with all errors found, one a line, each
// "job.yaml:12: model.hiden: unknown key; did you mean 'hidden'?".
//
// With a reader, the folder of model.from sets the keys of the model that it
// states, and a job that contradicts it is refused. Without one, the job must
// give all required keys itself, as those that JobToYaml() wrote do.
absl::StatusOr<JobSpec> ParseJob(absl::string_view yaml,
                                 const std::string& file_name,
                                 const FolderReader& read_folder = nullptr);
// Also returns InvalidArgument for a file that cannot be read.
absl::StatusOr<JobSpec> LoadJob(const std::string& path,
                                const FolderReader& read_folder = nullptr);

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
