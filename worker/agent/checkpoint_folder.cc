#include "worker/agent/checkpoint_folder.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "fault/manifest.h"
#include "fault/spread_files.h"
#include "planner/job/job_file.h"

namespace millrace {
namespace {

// A host that is restarting its agent, or a network that stumbles.
constexpr absl::Duration kReadAgainFor = absl::Seconds(5);

}  // namespace

absl::StatusOr<std::unique_ptr<CheckpointFolder>> CheckpointFolder::Open(
    const protocol::StartGeneration& generation, const WorkerOptions& options) {
  std::unique_ptr<CheckpointFolder> folder(new CheckpointFolder);
  folder->directory_ = generation.checkpoint_directory();
  const int num_hosts = generation.checkpoint_hosts_size();
  if (num_hosts == 0) {
    ASSIGN_OR_RETURN(const JobSpec job,
                     ParseJob(generation.job_yaml(), "the coordinator's job"));
    folder->stored_ = StoredFilesOf(job.checkpoint);
    folder->files_ = folder->stored_;
    return folder;
  }
  folder->of_coordinator_ = generation.checkpoint_directory();
  folder->directory_ = options.checkpoint_directory;
  const int own = generation.checkpoint_host();
  const int partner = (own + 1) % num_hosts;
  std::vector<HostDisk> mirrors;
  std::vector<HostDisk> sources;
  for (int i = 0; i < num_hosts; ++i) {
    if (i == own) continue;
    const protocol::FileHost& host = generation.checkpoint_hosts(i);
    ASSIGN_OR_RETURN(std::shared_ptr<RemoteFiles> files,
                     RemoteFiles::Create({.host = host.host(),
                                          .address = host.address(),
                                          .port = host.port(),
                                          .secret = options.secret,
                                          .directory = folder->directory_,
                                          .name = kServedCheckpoints,
                                          .retry = kReadAgainFor}));
    folder->remote_.push_back(files);
    (i == partner ? mirrors : sources)
        .push_back({std::move(files), host.host()});
  }
  folder->spread_ = std::make_shared<SpreadFiles>(
      HostDisk{BorrowedFiles(PosixFileSystem()),
               generation.checkpoint_hosts(own).host()},
      std::move(mirrors), std::move(sources));
  folder->files_ = folder->spread_;
  // Unlike generations, runs begin anew: a host that missed some may still hold
  // a part of the same rank, step and generation.
  folder->placement_ = {
      .run = absl::StrFormat(
          "%08x",
          static_cast<uint32_t>(Checksum(
              options.run.data(), static_cast<int64_t>(options.run.size())))),
      .hosts = {generation.checkpoint_hosts(own).host(),
                generation.checkpoint_hosts(partner).host()}};
  return folder;
}

std::string CheckpointFolder::PathOf(const std::string& path) const {
  if (of_coordinator_.empty() || !absl::StartsWith(path, of_coordinator_)) {
    return path;
  }
  return directory_ + path.substr(of_coordinator_.size());
}

std::vector<std::string> CheckpointFolder::TakeDamagedCopies() {
  return spread_ == nullptr ? std::vector<std::string>()
                            : spread_->TakeDamagedCopies();
}

void CheckpointFolder::Abort() {
  for (const auto& files : remote_) files->Abort();
  if (stored_ != nullptr) stored_->objects().Abort();
}

}  // namespace millrace
