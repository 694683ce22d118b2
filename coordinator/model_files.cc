#include "coordinator/model_files.h"

#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "fault/checkpoint.h"
#include "fault/checkpoint_files.h"
#include "planner/frameworks/model_folder.h"
#include "planner/job/job_file.h"

namespace millrace {
namespace {

// Tokenizers of large vocabularies have some 35 MB.
constexpr int64_t kMaxKeptBytes = int64_t{256} << 20;

std::string KeptFolder(const std::string& directory) {
  return JoinPath(directory, "model_files");
}

absl::StatusOr<std::string> ReadWhole(FileSystem& files,
                                      const std::string& path) {
  ASSIGN_OR_RETURN(const std::unique_ptr<RandomAccessFile> file,
                   files.Open(path));
  if (file->size() > kMaxKeptBytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, " has ", file->size(),
                                                   " bytes, expected at most ",
                                                   kMaxKeptBytes));
  }
  std::string content(static_cast<size_t>(file->size()), '\0');
  RETURN_IF_ERROR(file->Read(0, file->size(), content.data()));
  return content;
}

absl::Status WriteKept(FileSystem& files, const std::string& path,
                       const std::string& content) {
  const std::string temporary = absl::StrCat(path, ".tmp");
  ASSIGN_OR_RETURN(const auto file, files.Create(temporary));
  RETURN_IF_ERROR(
      file->Append(content.data(), static_cast<int64_t>(content.size())));
  RETURN_IF_ERROR(file->Sync());
  RETURN_IF_ERROR(file->Close());
  return files.Rename(temporary, path);
}

}  // namespace

absl::Status KeepModelFiles(FileSystem& files, const JobSpec& job,
                            const std::string& directory) {
  if (job.model_from.empty()) return absl::OkStatus();
  const std::string kept = KeptFolder(directory);
  RETURN_IF_ERROR(files.MakeDirectories(kept));
  std::vector<std::string> names = {kModelConfig};
  for (const char* name : CarriedFiles()) names.emplace_back(name);
  for (const std::string& name : names) {
    const std::string path = JoinPath(job.model_from, name);
    if (!files.Exists(path)) continue;
    ASSIGN_OR_RETURN(const std::string content, ReadWhole(files, path));
    RETURN_IF_ERROR(WriteKept(files, JoinPath(kept, name), content));
  }
  return files.SyncDirectory(kept);
}

absl::StatusOr<std::map<std::string, std::string>> FilesBesideWeights(
    FileSystem& files, const std::string& checkpoint, ElementType type) {
  ASSIGN_OR_RETURN(const CheckpointInfo info,
                   ReadCheckpointInfo(files, checkpoint));
  ASSIGN_OR_RETURN(
      const JobSpec job,
      ParseJob(info.job_yaml, absl::StrCat(checkpoint, " (job_yaml)")));
  RETURN_IF_ERROR(CheckIsOfModel(files, checkpoint, job.model));
  std::map<std::string, std::string> contents;
  if (job.model_from.empty()) {
    ASSIGN_OR_RETURN(contents[kModelConfig],
                     WriteModelConfig(job.model, TorchDtype(type)));
    return contents;
  }
  const std::string kept = KeptFolder(ParentPath(checkpoint));
  if (!files.Exists(JoinPath(kept, kModelConfig))) {
    return absl::NotFoundError(absl::StrCat(
        JoinPath(kept, kModelConfig), ": missing; the run had copied it from ",
        job.model_from, ": copy it and the tokenizer's files there again"));
  }
  return FilesBesideWeightsOf(files, kept, type);
}

absl::StatusOr<std::map<std::string, std::string>> FilesBesideWeightsOf(
    FileSystem& files, const std::string& folder, ElementType type) {
  std::map<std::string, std::string> contents;
  const std::string config = JoinPath(folder, kModelConfig);
  ASSIGN_OR_RETURN(const std::string source, ReadWhole(files, config));
  ASSIGN_OR_RETURN(contents[kModelConfig],
                   ChangeConfigType(source, config, TorchDtype(type)));
  for (const char* name : CarriedFiles()) {
    const std::string path = JoinPath(folder, name);
    if (!files.Exists(path)) continue;
    ASSIGN_OR_RETURN(contents[name], ReadWhole(files, path));
  }
  return contents;
}

}  // namespace millrace
