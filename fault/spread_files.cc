#include "fault/spread_files.h"

#include <functional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
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

}  // namespace

SpreadFiles::SpreadFiles(FileSystem* here,
                         std::vector<std::shared_ptr<FileSystem>> mirrors,
                         std::vector<std::shared_ptr<FileSystem>> sources)
    : mirrors_(std::move(mirrors)),
      sources_(std::move(sources)),
      written_{here},
      read_{here} {
  for (const auto& mirror : mirrors_) {
    written_.push_back(mirror.get());
    read_.push_back(mirror.get());
  }
  for (const auto& source : sources_) read_.push_back(source.get());
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
  for (FileSystem* files : read_) {
    absl::StatusOr<std::unique_ptr<RandomAccessFile>> file = files->Open(path);
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
  for (FileSystem* files : read_) {
    if (files->Exists(path)) return true;
  }
  return false;
}

absl::StatusOr<std::vector<std::string>> SpreadFiles::List(
    const std::string& path) {
  std::set<std::string> names;
  absl::Status first;
  bool any = false;
  for (FileSystem* files : read_) {
    const absl::StatusOr<std::vector<std::string>> listed = files->List(path);
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
