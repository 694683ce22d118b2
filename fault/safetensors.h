// The safetensors file format: eight bytes of header length (little-endian), a
// JSON header naming each tensor's type, shape and byte range, then the bytes,
// back to back. Written and read for the types of element_type.h, on
// little-endian machines.

#ifndef MILLRACE_FAULT_SAFETENSORS_H_
#define MILLRACE_FAULT_SAFETENSORS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fault/element_type.h"
#include "fault/file_system.h"

namespace millrace {

// The limit that other readers set; a longer header is damage or an attack.
inline constexpr int64_t kMaxSafetensorsHeaderBytes = 100'000'000;

struct SafetensorsTensor {
  std::string name;
  std::vector<int64_t> shape;
  ElementType type = ElementType::kFp32;
  int64_t num_elements() const;
  int64_t num_bytes() const { return num_elements() * ElementBytes(type); }
};

// Writes the tensors in the order given, as a stream: memory needed does not
// grow with the file.
class SafetensorsWriter {
 public:
  // Creates the file and writes its header. The tensors' data follows through
  // Append(). InvalidArgument if two tensors share a name.
  static absl::StatusOr<SafetensorsWriter> Create(
      FileSystem& files, const std::string& path,
      std::vector<SafetensorsTensor> tensors,
      const std::map<std::string, std::string>& metadata);

  // The next elements, in order, across tensor boundaries; rounded to the
  // tensor's type.
  absl::Status Append(const float* data, int64_t num_elements);

  // The next elements, of one tensor and already of its type.
  absl::Status AppendStored(const void* data, int64_t num_elements);

  // Makes the file durable (its folder's entry is the caller's) and closes it.
  // FailedPrecondition unless every element has been appended.
  absl::Status Finish();

  // Everything before the data, as written.
  const std::string& header() const { return header_; }

 private:
  SafetensorsWriter() = default;
  std::unique_ptr<WritableFile> file_;
  std::string header_;
  std::vector<SafetensorsTensor> tensors_;
  size_t tensor_idx_ = 0;        // The tensor that the next element is of.
  int64_t tensor_elements_ = 0;  // This tensor's, appended already.
  int64_t elements_left_ = 0;
  std::vector<char> narrowed_;
};

struct SafetensorsEntry {
  SafetensorsTensor tensor;
  int64_t offset;  // Bytes from the start of the file.
};
struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // By offset.
  std::map<std::string, std::string> metadata;
  int64_t bytes;      // Length field and header; the data starts there.
  uint64_t checksum;  // Over the header's text.
};

// Reads and checks the header of a file nobody vouches for: the length against
// the file, types, shapes, that no name is there twice, and that the ranges
// fill the file without gap or overlap. DataLoss naming `path` and what is
// wrong.
absl::StatusOr<SafetensorsHeader> ReadSafetensorsHeader(
    const RandomAccessFile& file, const std::string& path);

}  // namespace millrace

#endif  // MILLRACE_FAULT_SAFETENSORS_H_
