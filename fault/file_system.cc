#include "fault/file_system.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/status_macros.h"

namespace millrace {
namespace {

absl::Status ErrnoStatus(int error, absl::string_view action,
                         absl::string_view path) {
  const std::string message =
      absl::StrCat("failed to ", action, " ", path, ": ", strerror(error));
  if (error == ENOENT) return absl::NotFoundError(message);
  if (error == EACCES || error == EPERM || error == EROFS) {
    return absl::PermissionDeniedError(message);
  }
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) {
    return absl::ResourceExhaustedError(message);
  }
  return absl::InternalError(message);
}

// The disk begins with so many bytes while the next are appended, so that it
// does not idle until the file is synced.
constexpr off_t kWrittenBackAtOnce = 32 << 20;

class PosixWritableFile : public WritableFile {
 public:
  PosixWritableFile(int descriptor, std::string path)
      : descriptor_(descriptor), path_(std::move(path)) {}
  ~PosixWritableFile() override {
    if (descriptor_ >= 0) close(descriptor_);
  }

  absl::Status Append(const void* data, int64_t num_bytes) override {
    const char* next = static_cast<const char*>(data);
    while (num_bytes > 0) {
      const ssize_t written =
          write(descriptor_, next, static_cast<size_t>(num_bytes));
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return ErrnoStatus(errno, "write", path_);
      next += written;
      num_bytes -= written;
      num_written_ += written;
    }
    BeginToWriteBack();
    return absl::OkStatus();
  }

  absl::Status Sync() override {
    if (fsync(descriptor_) != 0) return ErrnoStatus(errno, "fsync", path_);
    return absl::OkStatus();
  }

  absl::Status Close() override {
    // The descriptor is gone whatever close() says, so it is never retried.
    const int descriptor = std::exchange(descriptor_, -1);
    if (descriptor >= 0 && close(descriptor) != 0) {
      return ErrnoStatus(errno, "close", path_);
    }
    return absl::OkStatus();
  }

 private:
  // A hint; errors of the disk are those of Sync().
  void BeginToWriteBack() {
    if (num_written_ - begun_ < kWrittenBackAtOnce) return;
    static_cast<void>(sync_file_range(
        descriptor_, begun_, num_written_ - begun_, SYNC_FILE_RANGE_WRITE));
    begun_ = num_written_;
  }

  int descriptor_;
  std::string path_;
  off_t num_written_ = 0;
  off_t begun_ = 0;
};

class PosixRandomAccessFile : public RandomAccessFile {
 public:
  PosixRandomAccessFile(int descriptor, int64_t size, std::string path)
      : descriptor_(descriptor), size_(size), path_(std::move(path)) {}
  ~PosixRandomAccessFile() override { close(descriptor_); }

  int64_t size() const override { return size_; }

  absl::Status Read(int64_t offset, int64_t num_bytes,
                    void* out) const override {
    char* next = static_cast<char*>(out);
    while (num_bytes > 0) {
      const ssize_t got =
          pread(descriptor_, next, static_cast<size_t>(num_bytes), offset);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return ErrnoStatus(errno, "read", path_);
      if (got == 0) {
        return absl::DataLossError(absl::StrCat(
            path_, " ends at byte ", offset, ", ", num_bytes,
            " bytes before what was to be read; the file is cut short"));
      }
      next += got;
      offset += got;
      num_bytes -= got;
    }
    return absl::OkStatus();
  }

 private:
  int descriptor_;
  int64_t size_;
  std::string path_;
};

class PosixFiles : public FileSystem {
 public:
  absl::StatusOr<std::unique_ptr<WritableFile>> Create(
      const std::string& path) override {
    const int descriptor =
        open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (descriptor < 0) return ErrnoStatus(errno, "create", path);
    return std::make_unique<PosixWritableFile>(descriptor, path);
  }

  absl::StatusOr<std::unique_ptr<RandomAccessFile>> Open(
      const std::string& path) override {
    ASSIGN_OR_RETURN(const int descriptor, OpenRegularFile(path));
    struct stat facts {};
    if (fstat(descriptor, &facts) != 0) {
      const absl::Status status = ErrnoStatus(errno, "look at", path);
      close(descriptor);
      return status;
    }
    return std::make_unique<PosixRandomAccessFile>(descriptor, facts.st_size,
                                                   path);
  }

  absl::Status Rename(const std::string& from, const std::string& to) override {
    if (rename(from.c_str(), to.c_str()) != 0) {
      return ErrnoStatus(errno, absl::StrCat("rename ", from, " to"), to);
    }
    return absl::OkStatus();
  }

  absl::Status SyncDirectory(const std::string& path) override {
    const int descriptor =
        open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) return ErrnoStatus(errno, "open folder", path);
    const int result = fsync(descriptor);
    const int error = errno;
    close(descriptor);
    // Some network file systems cannot fsync a folder and need not.
    if (result != 0 && error != EINVAL) {
      return ErrnoStatus(error, "fsync folder", path);
    }
    return absl::OkStatus();
  }

  absl::Status MakeDirectories(const std::string& path) override {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    if (error) return ErrnoStatus(error.value(), "create folder", path);
    return absl::OkStatus();
  }

  absl::Status Remove(const std::string& path) override {
    std::error_code error;
    std::filesystem::remove_all(path, error);
    if (error) return ErrnoStatus(error.value(), "remove", path);
    return absl::OkStatus();
  }

  bool Exists(const std::string& path) override {
    std::error_code error;
    return std::filesystem::exists(path, error);
  }

  absl::StatusOr<std::vector<std::string>> List(
      const std::string& path) override {
    std::error_code error;
    std::filesystem::directory_iterator iterator(path, error);
    std::vector<std::string> names;
    while (!error && iterator != std::filesystem::directory_iterator()) {
      names.push_back(iterator->path().filename().string());
      iterator.increment(error);
    }
    if (error) return ErrnoStatus(error.value(), "list folder", path);
    std::sort(names.begin(), names.end());
    return names;
  }
};

}  // namespace

absl::StatusOr<std::vector<FileCopy>> FileSystem::OpenCopies(
    const std::string& path) {
  std::vector<FileCopy> copies(1);
  ASSIGN_OR_RETURN(copies.front().file, Open(path));
  return copies;
}

FileSystem* PosixFileSystem() {
  static PosixFiles* const files = new PosixFiles;
  return files;
}

}  // namespace millrace
