// Reads the rows of Parquet files as records: columns of numbers and text,
// lists and structs of them, as pyarrow writes them by default.

#ifndef MILLRACE_WORKER_RECORDS_PARQUET_RECORDS_H_
#define MILLRACE_WORKER_RECORDS_PARQUET_RECORDS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/records/records.h"

namespace millrace {

// Parts are row groups.
absl::StatusOr<std::vector<RecordPart>> CutParquet(const DataFile& file,
                                                   int64_t part_bytes);
// InvalidArgument if the file has none of `columns`, or if one that it has
// holds no text or number. If `columns` is empty, all that do are read.
absl::StatusOr<std::unique_ptr<RecordReader>> OpenParquet(
    const RecordPart& part, const std::vector<std::string>& columns);

}  // namespace millrace

#endif  // MILLRACE_WORKER_RECORDS_PARQUET_RECORDS_H_
