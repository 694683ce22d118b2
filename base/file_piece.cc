#include "base/file_piece.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/status_macros.h"

namespace millrace {

absl::StatusOr<std::string> ReadPiece(const std::string& path, int64_t offset,
                                      int64_t max_bytes) {
  ASSIGN_OR_RETURN(const int file, OpenRegularFile(path));
  std::string piece(static_cast<size_t>(max_bytes), '\0');
  ssize_t count = 0;
  do {
    count =
        pread(file, piece.data(), piece.size(), std::max<int64_t>(offset, 0));
  } while (count < 0 && errno == EINTR);
  const int error = errno;
  close(file);
  if (count < 0) {
    return absl::InternalError(
        absl::StrCat("failed to read ", path, ": ", strerror(error)));
  }
  piece.resize(static_cast<size_t>(count));
  return piece;
}

}  // namespace millrace
