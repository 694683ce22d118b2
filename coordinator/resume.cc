#include "coordinator/resume.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "fault/checkpoint.h"
#include "planner/job/job_file.h"

namespace millrace {
namespace {

constexpr char kStartAfresh[] =
    "bring a whole checkpoint back into that folder, or set "
    "checkpoint.resume: none to start afresh";

// Returns OK if the checkpoint belongs to this job and is whole; otherwise says
// why not.
absl::Status Suits(FileSystem& files, const DamagedRestore& damaged,
                   const std::string& path) {
  if (!damaged.job_yaml.empty()) {
    absl::StatusOr<CheckpointInfo> info = ReadCheckpointInfo(files, path);
    RETURN_IF_ERROR(info.status());
    if (info->job_yaml != damaged.job_yaml) {
      return absl::FailedPreconditionError(
          absl::StrCat(path, " was written by another job"));
    }
  }
  return VerifyCheckpoint(files, path);
}

}  // namespace

absl::StatusOr<ResumeChoice> ChooseResume(FileSystem& files,
                                          const std::string& directory,
                                          const ModelSpec* model) {
  ResumeChoice choice;
  const absl::StatusOr<CheckpointEntry> newest = FindNewestCheckpoint(
      files, directory, &choice.skipped, model, CheckParts);
  if (newest.ok()) {
    choice.path = newest->path;
    choice.step = newest->step;
    return choice;
  }
  if (!absl::IsNotFound(newest.status())) return newest.status();
  if (choice.skipped.empty()) return choice;
  return absl::DataLossError(absl::StrCat(newest.status().message(), " (",
                                          absl::StrJoin(choice.skipped, "; "),
                                          "); ", kStartAfresh));
}

std::string ReasonNotToResume(const CheckpointSpec& spec) {
  if (spec.directory.empty()) {
    return "checkpoint.directory is not set, so checkpoints are in the run "
           "directory, and each start makes its own";
  }
  if (spec.resume != "auto") {
    return absl::StrCat("checkpoint.resume is ", spec.resume, ", not auto");
  }
  return "";
}

absl::Status CheckSameStart(FileSystem& files, const ResumeChoice& choice,
                            const JobSpec& job) {
  const bool has_reference = job.training.trains_preferences();
  if (choice.path.empty() || (job.model_from.empty() && !has_reference)) {
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const CheckpointInfo info,
                   ReadCheckpointInfo(files, choice.path));
  ASSIGN_OR_RETURN(
      const JobSpec earlier,
      ParseJob(info.job_yaml, absl::StrCat(choice.path, " (job_yaml)")));
  if (has_reference && !earlier.training.trains_preferences()) {
    return absl::InvalidArgumentError(absl::StrCat(
        choice.path, " is of a training with training.objective ",
        earlier.training.objective, "; dpo would go on from it beside ",
        job.model_from.empty() ? "random weights" : job.model_from,
        " as the reference. Export it (millrace checkpoint export), name that "
        "folder in model.from, and set checkpoint.resume: none"));
  }
  if (earlier.model_fingerprint == job.model_fingerprint) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      choice.path, " is of a training that started from ",
      earlier.model_from.empty()
          ? "random weights"
          : absl::StrCat("other weights, of fingerprint ",
                         earlier.model_fingerprint, " in ", earlier.model_from),
      ", and model.from names ", job.model_from, ", of fingerprint ",
      job.model_fingerprint,
      "; name another checkpoint.directory, set checkpoint.resume: none, or "
      "bring back the folder"));
}

absl::StatusOr<ResumeChoice> ChooseRestore(FileSystem& files,
                                           const DamagedRestore& damaged) {
  ResumeChoice choice;
  if (damaged.path.empty()) return choice;
  const absl::Status expected = VerifyCheckpoint(files, damaged.path);
  if (expected.ok()) {
    choice.path = damaged.path;
    choice.step = damaged.newest_step;
    return choice;
  }
  choice.skipped.push_back(std::string(expected.message()));
  std::vector<CheckpointEntry> entries;
  if (!damaged.directory.empty()) {
    ASSIGN_OR_RETURN(entries, ListCheckpoints(files, damaged.directory));
  }
  for (const CheckpointEntry& entry : entries) {
    if (entry.path == damaged.path || entry.step > damaged.newest_step) {
      continue;
    }
    const absl::Status status = Suits(files, damaged, entry.path);
    if (status.ok()) {
      choice.path = entry.path;
      choice.step = entry.step;
      return choice;
    }
    choice.skipped.push_back(std::string(status.message()));
  }
  return absl::DataLossError(absl::StrCat(
      "the checkpoint to go on from is damaged and no other can take its "
      "place (",
      absl::StrJoin(choice.skipped, "; "), "); ", kStartAfresh));
}

bool UsesCheckpoints(const JobSpec& job) {
  const CheckpointSpec& spec = job.checkpoint;
  const bool reads = spec.resume != "none" &&
                     (spec.resume != "auto" || !spec.directory.empty());
  return spec.at_end || spec.is_periodic() || job.exports.every > 0 || reads;
}

}  // namespace millrace
