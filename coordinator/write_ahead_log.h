// The coordinator's memory: what it decided, appended and made durable before
// it acts, so that a restarted coordinator goes on where the last one stopped.
//
// One JSON object a line behind its checksum, for example
//   9f86d081884c7d65 {"record":"generation","generation":3}
// A torn last line (a crash in the middle of a write) is cut off when the log
// is opened; damage before it is DataLoss.

#ifndef MILLRACE_COORDINATOR_WRITE_AHEAD_LOG_H_
#define MILLRACE_COORDINATOR_WRITE_AHEAD_LOG_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/ids.h"
#include "coordinator/succession/keepers.h"
#include "coordinator/succession/log_copies.h"

namespace millrace {

// The sum of all records.
struct LoggedJob {
  double started_unix_s = 0;  // Wall clock, for the events' time only.
  Generation generation{};
  std::string plan_json;  // PlanRecord of planning.h; empty before a plan.
  int64_t committed_step = -1;
  std::string committed_path;
  std::set<int64_t> left_out_steps;  // Their batches are not trained.
  // Copies in memory of this generation and older ones are not restored: it
  // had wrong numbers, or was to be forgotten. Its own copies up to the trusted
  // step are; below zero: none.
  Generation distrusted_memory{};
  int64_t trusted_step = -1;
  std::vector<Keeper> keepers;  // None: this log has no copies.
  // With keepers: profile.yaml, for a host that has not the run directory.
  std::string profile_yaml;
  bool ended = false;
  int exit_code = 0;  // If it ended.
  std::string end_message;
};

class WriteAheadLog {
 public:
  // Opens or creates `path` and reads what it holds.
  static absl::StatusOr<std::unique_ptr<WriteAheadLog>> Open(
      const std::string& path);
  ~WriteAheadLog();

  const LoggedJob& job() const { return job_; }

  const std::vector<std::string>& records() const { return records_; }

  // Writes the keepers down, where they are new, and from then on records count
  // only once a majority of them has them. `copies` has made that so for all
  // records up to now, and for the keepers' own.
  absl::Status KeepCopies(std::unique_ptr<LogCopies> copies,
                          const std::vector<Keeper>& keepers);
  // OK if no later coordinator has taken over, by a majority of the keepers;
  // also where there are none. Errors are LogCopies'.
  absl::Status Confirm();

  // A record is durable when its function returns, and counts. Errors are
  // Internal where this host's disk does not take it, and else LogCopies'.
  absl::Status Started(double unix_s);
  absl::Status GenerationRaised(Generation generation);
  absl::Status PlanChosen(const std::string& plan_json);
  absl::Status ProfileChosen(const std::string& profile_yaml);
  absl::Status CheckpointCommitted(int64_t step, const std::string& path);
  // The same in two halves: a disk that is slow to make the record durable
  // holds up only the thread that calls the first, which may be any. The second
  // makes it count in job() and is called on the log's own thread.
  absl::Status WriteCheckpointCommitted(int64_t step, const std::string& path);
  absl::Status CountCheckpointCommitted(int64_t step, const std::string& path);
  absl::Status StepsLeftOut(int64_t first, int64_t last);
  absl::Status MemoryDistrusted(Generation generation,
                                int64_t trusted_step = -1);
  absl::Status Ended(int exit_code, const std::string& message);

 private:
  WriteAheadLog(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  absl::Status Append(const std::string& record);
  absl::Status Write(const std::string& record);  // Thread-safe.
  absl::Status Apply(const std::string& record);

  const int fd_;
  const std::string path_;
  LoggedJob job_;
  std::vector<std::string> records_;
  std::mutex writing_;
  std::unique_ptr<LogCopies> copies_;  // Null: there are none.
};

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_WRITE_AHEAD_LOG_H_
