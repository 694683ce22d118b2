// Reads from another copy of a file when one copy is damaged.

#ifndef MILLRACE_FAULT_FILE_COPIES_H_
#define MILLRACE_FAULT_FILE_COPIES_H_

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "fault/file_system.h"

namespace millrace {

// Calls `read` with each copy of `path` until one call succeeds, and tells
// files.OnDamagedCopy() of the copies before that one. `first` is the error
// that the file of Open() gave; it is returned at once if it is Aborted or if
// there is no other copy. If every copy fails, the error is `first` with the
// number of copies. `read` starts anew with each copy.
absl::Status ReadAnotherCopy(
    FileSystem& files, const std::string& path, const absl::Status& first,
    absl::FunctionRef<absl::Status(const RandomAccessFile& file)> read);

}  // namespace millrace

#endif  // MILLRACE_FAULT_FILE_COPIES_H_
