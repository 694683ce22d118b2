// Zip archives whose members are stored as they are, as PyTorch writes them:
// a member's bytes are a range of the file and need no unpacking.

#ifndef MILLRACE_FAULT_STORED_ZIP_H_
#define MILLRACE_FAULT_STORED_ZIP_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fault/file_system.h"

namespace millrace {

struct StoredMember {
  std::string name;
  int64_t offset;  // The first byte's, from the start of the file.
  int64_t num_bytes;
};

// The members of the archive in bytes [begin, end) of the file, which may hold
// others before and behind it. Checks the archive's directory and the header of
// each member: that they agree, that ranges lie within the archive and do not
// overlap. InvalidArgument "PATH: byte N: what was found; what to do", also for
// members that are compressed or encrypted. Checksums are not compared: writers
// may leave them out.
absl::StatusOr<std::vector<StoredMember>> ReadStoredZip(
    const RandomAccessFile& file, const std::string& path, int64_t begin,
    int64_t end);

}  // namespace millrace

#endif  // MILLRACE_FAULT_STORED_ZIP_H_
