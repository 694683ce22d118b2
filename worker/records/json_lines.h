// Reads JSON Lines: an object a line, the file plain or packed.

#ifndef MILLRACE_WORKER_RECORDS_JSON_LINES_H_
#define MILLRACE_WORKER_RECORDS_JSON_LINES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/records/records.h"

namespace millrace {

absl::StatusOr<std::vector<RecordPart>> CutJsonLines(const DataFile& file,
                                                     int64_t part_bytes);
absl::StatusOr<std::unique_ptr<RecordReader>> OpenJsonLines(
    const RecordPart& part);
// Line ends in the first `end` bytes of a plain file; what cannot be read is
// not counted.
int64_t CountLineEnds(const std::string& path, int64_t end);

}  // namespace millrace

#endif  // MILLRACE_WORKER_RECORDS_JSON_LINES_H_
