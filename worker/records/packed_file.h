// The door to zlib, zstd and snappy. The bytes of a file, unpacked while they
// are read if the file is packed by gzip or zstd. Which one it is, the content
// tells.

#ifndef MILLRACE_WORKER_RECORDS_PACKED_FILE_H_
#define MILLRACE_WORKER_RECORDS_PACKED_FILE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace millrace {

enum class Packing : uint8_t { kNone, kGzip, kZstd };

class PackedFile {
 public:
  // InvalidArgument if the name ends in .gz or .zst and the content is not
  // that.
  static absl::StatusOr<std::unique_ptr<PackedFile>> Open(
      const std::string& path);
  virtual ~PackedFile() = default;
  virtual Packing packing() const = 0;
  // Plain files only.
  virtual absl::Status Seek(int64_t position) = 0;
  // At most `size` bytes; zero at the end. DataLoss for a file that is damaged
  // or cut.
  virtual absl::StatusOr<size_t> Read(char* out, size_t size) = 0;
};

// Unpacks a block whose plain size is known; false if it is not that.
bool UnpackSnappy(absl::string_view packed, int64_t num_bytes,
                  std::string* plain);
bool UnpackGzip(absl::string_view packed, int64_t num_bytes,
                std::string* plain);
bool UnpackZstd(absl::string_view packed, int64_t num_bytes,
                std::string* plain);

}  // namespace millrace

#endif  // MILLRACE_WORKER_RECORDS_PACKED_FILE_H_
