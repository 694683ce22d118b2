#include "base/files.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace millrace {
namespace {

absl::Status ErrnoStatus(int error, absl::string_view action,
                         absl::string_view path) {
  const std::string message =
      absl::StrCat("failed to ", action, " ", path, ": ", strerror(error));
  if (error == ENOENT) return absl::NotFoundError(message);
  if (error == EACCES || error == EPERM) {
    return absl::PermissionDeniedError(message);
  }
  if (error == ENOSPC) return absl::ResourceExhaustedError(message);
  return absl::InternalError(message);
}

}  // namespace

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is a folder, a file was expected"));
  }
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  if (!in) return ErrnoStatus(errno, "open", path);
  std::string content{std::istreambuf_iterator<char>(in), {}};
  if (in.bad()) return ErrnoStatus(errno, "read", path);
  return content;
}

absl::Status WriteFileAtomically(const std::string& path,
                                 absl::string_view content) {
  const std::string temporary = absl::StrCat(path, ".tmp.", getpid());
  errno = 0;
  {
    std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
    out.write(content.data(), static_cast<std::streamsize>(content.size()));
    out.flush();
    if (!out) {
      const absl::Status status = ErrnoStatus(errno, "write", temporary);
      std::remove(temporary.c_str());
      return status;
    }
  }
  if (std::rename(temporary.c_str(), path.c_str()) != 0) {
    const absl::Status status = ErrnoStatus(errno, "rename into", path);
    std::remove(temporary.c_str());
    return status;
  }
  return absl::OkStatus();
}

absl::Status MakeDirectories(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) return ErrnoStatus(error.value(), "create folder", path);
  return absl::OkStatus();
}

bool FileExists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

}  // namespace millrace
