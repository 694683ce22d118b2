// The bytes of a Parquet file, read where they are needed.

#ifndef MILLRACE_WORKER_RECORDS_PARQUET_FILE_H_
#define MILLRACE_WORKER_RECORDS_PARQUET_FILE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace millrace {

class ParquetFile {
 public:
  static absl::StatusOr<ParquetFile> Open(const std::string& path);
  ParquetFile(ParquetFile&& other) noexcept;
  ParquetFile& operator=(ParquetFile&&) = delete;
  ~ParquetFile();

  const std::string& path() const { return path_; }
  int64_t size_bytes() const { return size_bytes_; }
  // Exactly so many bytes; DataLoss if the file ends before.
  absl::StatusOr<std::string> Read(int64_t position, int64_t num_bytes) const;
  // DataLoss with the path, what is wrong and what to do.
  absl::Status Damaged(absl::string_view what) const;

 private:
  ParquetFile(std::string path, int file, int64_t size_bytes);
  std::string path_;
  int file_;
  int64_t size_bytes_;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_RECORDS_PARQUET_FILE_H_
