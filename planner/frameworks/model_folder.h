// The model of a Hugging Face folder, for jobs whose model.from names one.

#ifndef MILLRACE_PLANNER_FRAMEWORKS_MODEL_FOLDER_H_
#define MILLRACE_PLANNER_FRAMEWORKS_MODEL_FOLDER_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "planner/frameworks/stored_names.h"
#include "planner/job/job_file.h"
#include "planner/layout/model.h"

namespace millrace {

inline constexpr char kModelConfig[] = "config.json";

// Reads the folder's config.json exactly: a model that ours cannot be, and any
// key that could change what the model computes and is not known, are errors.
// InvalidArgument with all of them, one a line. Reads no weights.
absl::StatusOr<FolderModel> ReadModelFolder(
    const std::string& folder, std::optional<int64_t> sequence_length);

// The model of the folder, for its longest sequences.
absl::StatusOr<ModelSpec> ReadModelOfFolder(const std::string& folder);

// Files that a folder may have beside config.json and weights, and that its
// users expect beside weights trained from it: tokenizer, chat template, how to
// generate.
std::span<const char* const> CarriedFiles();

// A config.json of the model, for weights of that type ("bfloat16").
// InvalidArgument naming the option where no known family has all of its
// options; what it returns, ReadModelFolder() reads as the same model.
absl::StatusOr<std::string> WriteModelConfig(const ModelSpec& model,
                                             absl::string_view torch_dtype);

// How the files beside this config.json name tensors. `path` is for messages.
absl::StatusOr<TensorNaming> NamingOfConfig(absl::string_view config,
                                            const std::string& path);

// The text of a config.json for weights of another type. All else stays, keys
// that ours does not know included. `path` is for messages.
absl::StatusOr<std::string> ChangeConfigType(absl::string_view config,
                                             const std::string& path,
                                             absl::string_view torch_dtype);

// LoadJob() of a job that may name a folder.
absl::StatusOr<JobSpec> LoadJobWithFolder(const std::string& path);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_FRAMEWORKS_MODEL_FOLDER_H_
