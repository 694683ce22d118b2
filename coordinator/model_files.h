// The part of the Hugging Face folder of its model that a run keeps beside its
// checkpoints: config.json, tokenizer and chat template. So weights trained
// from that model can be exported whenever.

#ifndef MILLRACE_COORDINATOR_MODEL_FILES_H_
#define MILLRACE_COORDINATOR_MODEL_FILES_H_

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fault/element_type.h"
#include "fault/file_system.h"
#include "planner/job/job.h"

namespace millrace {

// Copies the files of job.model_from, if the job has one, to where checkpoints
// of `directory` keep them.
absl::Status KeepModelFiles(FileSystem& files, const JobSpec& job,
                            const std::string& directory);

// The files that belong beside weights of that type, contents by name: those
// that were kept with the checkpoint in the step's folder `checkpoint`, or a
// config.json that follows from its job where the model came from no folder.
absl::StatusOr<std::map<std::string, std::string>> FilesBesideWeights(
    FileSystem& files, const std::string& checkpoint, ElementType type);

// The same from the folder of a model.
absl::StatusOr<std::map<std::string, std::string>> FilesBesideWeightsOf(
    FileSystem& files, const std::string& folder, ElementType type);

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_MODEL_FILES_H_
