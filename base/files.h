// Whole small files, with errors that name the path. Checkpoints go through
// fault/file_system.h instead, which can be made to fail at any point.

#ifndef MILLRACE_BASE_FILES_H_
#define MILLRACE_BASE_FILES_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace millrace {

// NotFound if there is no such file, PermissionDenied or Internal otherwise.
absl::StatusOr<std::string> ReadFile(const std::string& path);

// Writes beside `path` and renames into place, so that readers see the old
// content or the new, never a part.
absl::Status WriteFileAtomically(const std::string& path,
                                 absl::string_view content);

// Creates `path` and its parents; existing folders are fine.
absl::Status MakeDirectories(const std::string& path);

bool FileExists(const std::string& path);

}  // namespace millrace

#endif  // MILLRACE_BASE_FILES_H_
