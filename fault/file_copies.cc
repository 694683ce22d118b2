#include "fault/file_copies.h"

#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace millrace {

absl::Status ReadAnotherCopy(
    FileSystem& files, const std::string& path, const absl::Status& first,
    absl::FunctionRef<absl::Status(const RandomAccessFile& file)> read) {
  if (absl::IsAborted(first)) return first;
  const absl::StatusOr<std::vector<FileCopy>> copies = files.OpenCopies(path);
  if (!copies.ok() || copies->size() < 2) return first;
  std::vector<DamagedCopy> damaged;
  for (const FileCopy& copy : *copies) {
    const absl::Status status = read(*copy.file);
    if (absl::IsAborted(status)) return status;
    if (status.ok()) {
      for (DamagedCopy& passed_over : damaged) {
        passed_over.used_host = copy.host;
        files.OnDamagedCopy(passed_over);
      }
      return absl::OkStatus();
    }
    damaged.push_back({.path = path,
                       .host = copy.host,
                       .reason = std::string(status.message())});
  }
  return absl::Status(first.code(),
                      absl::StrCat(first.message(), " None of its ",
                                   copies->size(), " copies is whole here."));
}

}  // namespace millrace
