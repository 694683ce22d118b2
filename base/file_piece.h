// A piece of a file that may grow, such as a log, under the rules of
// base/files.h.

#ifndef MILLRACE_BASE_FILE_PIECE_H_
#define MILLRACE_BASE_FILE_PIECE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace millrace {

// At most `max_bytes` from `offset` on; empty at the file's end and beyond.
absl::StatusOr<std::string> ReadPiece(const std::string& path, int64_t offset,
                                      int64_t max_bytes);

}  // namespace millrace

#endif  // MILLRACE_BASE_FILE_PIECE_H_
