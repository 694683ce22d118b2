#include "fault/spread_files.h"

#include <functional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/parallel.h"
#include "base/status_macros.h"

namespace millrace {
namespace {

// Disks and hosts wait for each other's calls, not for this machine's cores.
constexpr int kMaxCallsAtOnce = 16;

template <typename Part>
absl::Status OnAll(const std::vector<Part>& parts,
                   const std::function<absl::Status(Part)>& call) {
  return ParallelFor(static_cast<int64_t>(parts.size()), kMaxCallsAtOnce,
                     [&](int64_t i) { return call(parts[i]); });
}

// A file on several disks.
class SpreadFile : public WritableFile {
 public:
  explicit SpreadFile(std::vector<std::unique_ptr<WritableFile>> copies)
      : owned_(std::move(copies)) {
    for (const auto& copy : owned_) copies_.push_back(copy.get());
  }
  absl::Status Append(const void* data, int64_t num_bytes) override {
    return OnAll<WritableFile*>(copies_, [&](WritableFile* copy) {
      return copy->Append(data, num_bytes);
    });
  }
  absl::Status Sync() override {
    return OnAll<WritableFile*>(
        copies_, [](WritableFile* copy) { return copy->Sync(); });
  }
  absl::Status Close() override {
    return OnAll<WritableFile*>(
        copies_, [](WritableFile* copy) { return copy->Close(); });
  }

 private:
  const std::vector<std::unique_ptr<WritableFile>> owned_;
  std::vector<WritableFile*> copies_;
};

// "step-00000012/rank-00000.g1.safetensors": hosts may have a folder under
// names of their own.
absl::string_view ShortName(absl::string_view path) {
  size_t slash = path.rfind('/');
  if (slash == absl::string_view::npos || slash == 0) return path;
  slash = path.rfind('/', slash - 1);
  return slash == absl::string_view::npos ? path : path.substr(slash + 1);
}

}  // namespace

std::shared_ptr<FileSystem> BorrowedFiles(FileSystem* files) {
  return {std::shared_ptr<void>(), files};
}

SpreadFiles::SpreadFiles(HostDisk here, std::vector<HostDisk> mirrors,
                         std::vector<HostDisk> sources) {
  disks_.push_back(std::move(here));
  for (HostDisk& mirror : mirrors) disks_.push_back(std::move(mirror));
  for (const HostDisk& disk : disks_) written_.push_back(disk.files.get());
  for (HostDisk& source : sources) disks_.push_back(std::move(source));
}

absl::StatusOr<std::unique_ptr<WritableFile>> SpreadFiles::Create(
    const std::string& path) {
  std::vector<std::unique_ptr<WritableFile>> copies(written_.size());
  RETURN_IF_ERROR(ParallelFor(
      static_cast<int64_t>(written_.size()), kMaxCallsAtOnce, [&](int64_t i) {
        absl::StatusOr<std::unique_ptr<WritableFile>> copy =
            written_[i]->Create(path);
        if (copy.ok()) copies[i] = *std::move(copy);
        return copy.status();
      }));
  return std::make_unique<SpreadFile>(std::move(copies));
}

absl::StatusOr<std::unique_ptr<RandomAccessFile>> SpreadFiles::Open(
    const std::string& path) {
  absl::Status first;
  std::string unreached;
  for (const HostDisk& disk : disks_) {
    absl::StatusOr<std::unique_ptr<RandomAccessFile>> file =
        disk.files->Open(path);
    if (file.ok()) return file;
    if (absl::IsAborted(file.status())) return file.status();
    if (first.ok()) first = file.status();
    if (absl::IsUnavailable(file.status())) {
      absl::StrAppend(&unreached, "; ", file.status().message());
    }
  }
  return absl::Status(
      first.code(),
      absl::StrCat(first.message(), ", and no other host has it", unreached));
}

absl::StatusOr<std::vector<FileCopy>> SpreadFiles::OpenCopies(
    const std::string& path) {
  std::vector<FileCopy> copies;
  for (const HostDisk& disk : disks_) {
    absl::StatusOr<std::unique_ptr<RandomAccessFile>> file =
        disk.files->Open(path);
    if (absl::IsAborted(file.status())) return file.status();
    if (file.ok()) {
      copies.push_back({.host = disk.host, .file = *std::move(file)});
    }
  }
  if (!copies.empty()) return copies;
  return Open(path).status();  // Says why there is none.
}

void SpreadFiles::OnDamagedCopy(const DamagedCopy& copy) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!damaged_.emplace(copy.path, copy.host).second) return;
  lines_.push_back(absl::StrCat(ShortName(copy.path), " on ", copy.host,
                                " is damaged, and ", copy.used_host,
                                "'s copy was read instead: ", copy.reason));
}

std::vector<std::string> SpreadFiles::TakeDamagedCopies() {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(lines_, {});
}

absl::Status SpreadFiles::Rename(const std::string& from,
                                 const std::string& to) {
  return OnAll<FileSystem*>(
      written_, [&](FileSystem* files) { return files->Rename(from, to); });
}

absl::Status SpreadFiles::SyncDirectory(const std::string& path) {
  return OnAll<FileSystem*>(
      written_, [&](FileSystem* files) { return files->SyncDirectory(path); });
}

absl::Status SpreadFiles::MakeDirectories(const std::string& path) {
  return OnAll<FileSystem*>(written_, [&](FileSystem* files) {
    return files->MakeDirectories(path);
  });
}

absl::Status SpreadFiles::Remove(const std::string& path) {
  return OnAll<FileSystem*>(
      written_, [&](FileSystem* files) { return files->Remove(path); });
}

bool SpreadFiles::Exists(const std::string& path) {
  for (const HostDisk& disk : disks_) {
    if (disk.files->Exists(path)) return true;
  }
  return false;
}

absl::StatusOr<std::vector<std::string>> SpreadFiles::List(
    const std::string& path) {
  std::set<std::string> names;
  absl::Status first;
  bool any = false;
  for (const HostDisk& disk : disks_) {
    const absl::StatusOr<std::vector<std::string>> listed =
        disk.files->List(path);
    if (listed.ok()) {
      any = true;
      names.insert(listed->begin(), listed->end());
    } else if (first.ok()) {
      first = listed.status();
    }
  }
  if (!any) return first;
  return std::vector<std::string>(names.begin(), names.end());
}

}  // namespace millrace
