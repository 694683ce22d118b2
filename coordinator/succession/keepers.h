// The agents that keep the coordinator's log, as the log itself names them, and
// the log's form on disk.

#ifndef MILLRACE_COORDINATOR_SUCCESSION_KEEPERS_H_
#define MILLRACE_COORDINATOR_SUCCESSION_KEEPERS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace millrace {

struct Keeper {
  uint64_t id = 0;  // LogKeeper's.
  int32_t agent_idx = 0;
  std::string host;     // For messages: "node2".
  std::string address;  // "10.0.0.2", where its file server answers.
  int32_t port = 0;
  // Where a coordinator on that host listens, as in ClientOptions.
  std::string coordinator_address;
  friend bool operator==(const Keeper&, const Keeper&) = default;
};

// The record that names them, and the keepers of a log that has one; none, if
// it has not. DataLoss for a damaged record.
std::string KeepersRecord(const std::vector<Keeper>& keepers);
absl::StatusOr<std::vector<Keeper>> KeepersIn(
    const std::vector<std::string>& records);

// All addresses at which the coordinator may be, as in ClientOptions.
std::string CoordinatorAddresses(const std::vector<Keeper>& keepers);

// A record as a line: its checksum, a space, the record, a line break.
std::string LogLine(absl::string_view record);
// The record of a line without its break; DataLoss if the line is not whole.
absl::StatusOr<std::string> RecordOfLine(absl::string_view line);

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_SUCCESSION_KEEPERS_H_
