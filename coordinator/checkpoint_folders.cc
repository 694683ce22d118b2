#include "coordinator/checkpoint_folders.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "coordinator/files/remote_files.h"
#include "fault/spread_files.h"

namespace millrace {
namespace {

absl::Status WriteProbe(FileSystem& files, const std::string& path) {
  ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> file,
                   files.Create(path));
  return file->Close();
}

// One agent's folder while folders are compared.
struct Folder {
  int32_t host_idx;
  FileSystem* files;
};

}  // namespace

absl::StatusOr<CheckpointFolders> FindCheckpointFolders(
    const FolderSearch& search) {
  std::string directory = search.directory;
  while (directory.size() > 1 && directory.back() == '/') directory.pop_back();
  const auto probe_of = [&](size_t host_idx) {
    return absl::StrCat(search.probe, "-at-", host_idx);
  };
  CheckpointFolders result;
  std::vector<HostDisk> remote;  // Behind the first.
  std::vector<Folder> probed;
  absl::Status status;
  for (const FolderCandidate& candidate : search.candidates) {
    if (candidate.sees_folder_of_first && !result.hosts.empty()) {
      result.of_agent[candidate.agent_idx] = 0;
      continue;
    }
    std::shared_ptr<FileSystem> files;
    FileSystem* folder = PosixFileSystem();
    if (!result.hosts.empty()) {
      ASSIGN_OR_RETURN(files,
                       RemoteFiles::Create({.host = candidate.host.host(),
                                            .address = candidate.host.address(),
                                            .port = candidate.host.port(),
                                            .secret = search.secret,
                                            .directory = directory,
                                            .name = kServedCheckpoints,
                                            .term = search.term}));
      folder = files.get();
    }
    status = folder->MakeDirectories(directory);
    if (!status.ok()) break;
    const absl::StatusOr<std::vector<std::string>> names =
        folder->List(directory);
    status = names.status();
    if (!status.ok()) break;
    int32_t shared = -1;
    for (const Folder& other : probed) {
      if (std::count(names->begin(), names->end(), probe_of(other.host_idx)) >
          0) {
        shared = other.host_idx;
      }
    }
    if (shared >= 0) {
      result.of_agent[candidate.agent_idx] = shared;
      continue;
    }
    const auto host_idx = static_cast<int32_t>(result.hosts.size());
    status =
        WriteProbe(*folder, absl::StrCat(directory, "/", probe_of(host_idx)));
    if (!status.ok()) break;
    probed.push_back({host_idx, folder});
    result.hosts.push_back(candidate.host);
    result.of_agent[candidate.agent_idx] = host_idx;
    if (files != nullptr) {
      remote.push_back({std::move(files), candidate.host.host()});
    }
  }
  for (const Folder& folder : probed) {
    folder.files
        ->Remove(absl::StrCat(directory, "/", probe_of(folder.host_idx)))
        .IgnoreError();
  }
  RETURN_IF_ERROR(status);
  const HostDisk here = {BorrowedFiles(PosixFileSystem()),
                         result.hosts.front().host()};
  result.files =
      std::make_shared<SpreadFiles>(here, remote, std::vector<HostDisk>());
  result.readers =
      std::make_shared<SpreadFiles>(here, std::vector<HostDisk>(), remote);
  return result;
}

}  // namespace millrace
