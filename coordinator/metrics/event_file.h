// Writes a TensorBoard event file: frames of
//   u64 length, u32 masked CRC-32C of it, bytes, u32 masked CRC-32C of them
// in little endian. The bytes are messages of tensorboard.proto. TensorBoard
// reads the file while it grows.

#ifndef MILLRACE_COORDINATOR_METRICS_EVENT_FILE_H_
#define MILLRACE_COORDINATOR_METRICS_EVENT_FILE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/metrics/append_file.h"
#include "coordinator/metrics/run_records.h"

namespace millrace {

// One frame around `bytes`.
std::string EventFrame(absl::string_view bytes);

class EventFile {
 public:
  // Begins a new file in `folder`; those of an earlier coordinator stay.
  static absl::StatusOr<EventFile> Open(const std::string& folder);

  // Adds all values of a step. A step that is not after the last one, as
  // happens after a recovery, takes the place of what it repeats.
  absl::Status Add(const StepRecord& record, double unix_s);

 private:
  explicit EventFile(AppendFile file);

  AppendFile file_;
  int64_t last_step_ = -1;  // Below zero: none yet.
};

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_METRICS_EVENT_FILE_H_
