#include "worker/records/parquet_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/status_macros.h"

namespace millrace {

absl::StatusOr<ParquetFile> ParquetFile::Open(const std::string& path) {
  ASSIGN_OR_RETURN(const int file, OpenRegularFile(path));
  struct stat info {};
  const int64_t size = fstat(file, &info) == 0 ? info.st_size : 0;
  return ParquetFile(path, file, size);
}

ParquetFile::ParquetFile(std::string path, int file, int64_t size_bytes)
    : path_(std::move(path)), file_(file), size_bytes_(size_bytes) {}

ParquetFile::ParquetFile(ParquetFile&& other) noexcept
    : path_(std::move(other.path_)),
      file_(std::exchange(other.file_, -1)),
      size_bytes_(other.size_bytes_) {}

ParquetFile::~ParquetFile() {
  if (file_ >= 0) close(file_);
}

absl::StatusOr<std::string> ParquetFile::Read(int64_t position,
                                              int64_t num_bytes) const {
  std::string bytes(static_cast<size_t>(num_bytes), '\0');
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = pread(file_, bytes.data() + done, bytes.size() - done,
                                position + static_cast<int64_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      return absl::InternalError(
          absl::StrCat("failed to read ", path_, ": ", strerror(errno)));
    }
    if (count == 0) return Damaged("it ends too early");
    done += static_cast<size_t>(count);
  }
  return bytes;
}

absl::Status ParquetFile::Damaged(absl::string_view what) const {
  return absl::DataLossError(
      absl::StrCat(path_, ": the Parquet file is damaged or cut: ", what,
                   "; copy it again from where it came"));
}

}  // namespace millrace
