// Libraries that are loaded when they are needed, and why one could not be.

#ifndef MILLRACE_WORKER_BACKEND_SHARED_LIBRARY_H_
#define MILLRACE_WORKER_BACKEND_SHARED_LIBRARY_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace millrace {

// Loads a library for the rest of the process, with the names in it resolved.
// Unavailable carries what the system says. `path` without a slash is looked
// for as the system looks for libraries.
absl::StatusOr<void*> LoadSharedLibrary(const std::string& path);

// The library that a loading error says is missing, as in "libnccl.so.2: cannot
// open shared object file: ..."; empty if it says something else.
std::string MissingLibrary(absl::string_view error);

// Paths of a library by the name `file` in folders that match `patterns`, in
// order; in each, ${NAME} at the start stands for an environment variable, and
// drops the pattern where that is unset or empty.
std::vector<std::string> FindInFolders(const std::vector<std::string>& patterns,
                                       const std::string& file);

// The folder that this program's file lies in. Internal if it is not known.
absl::StatusOr<std::string> ProgramFolder();

// The folder of the file that holds this function: a shared library's where it
// is linked into one, as under Python. Empty if it is not known.
std::string CodeFolder();

}  // namespace millrace

#endif  // MILLRACE_WORKER_BACKEND_SHARED_LIBRARY_H_
