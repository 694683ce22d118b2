// Keeps the copies of a running coordinator's log at its keepers up to date,
// and tells them several times a second that the coordinator lives: the
// connections and threads around log_leader.h.

#ifndef MILLRACE_COORDINATOR_SUCCESSION_LOG_COPIES_H_
#define MILLRACE_COORDINATOR_SUCCESSION_LOG_COPIES_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/files/remote_files.h"
#include "coordinator/succession/keepers.h"
#include "coordinator/succession/log_keeper.h"
#include "coordinator/succession/log_leader.h"

namespace millrace {

struct LogCopiesOptions {
  std::vector<Keeper> keepers;
  std::string secret;
  int64_t term = 0;
  std::vector<std::string> records;  // The log so far.
  // The agent that has the coordinator. Nobody else is told before its keeper,
  // if it is one, so that it knows of all that others know.
  int32_t own_agent = -1;
  // The coordinator must not do anything any more: there is a later one, or a
  // majority of the keepers has not been reached for `alone_limit`. At most
  // once, on another thread and with a lock held: it may end the process, and
  // may not call this object.
  std::function<void(const std::string& reason)> on_deposed;
  absl::Duration alone_limit = absl::Seconds(5);
};

// Thread-safe. One connection and thread for each keeper, so that one that is
// away holds up nothing.
class LogCopies {
 public:
  // Returns once a majority has the log. Unavailable, with what each keeper
  // said, if that takes longer than `alone_limit`; Aborted if there is a later
  // coordinator.
  static absl::StatusOr<std::unique_ptr<LogCopies>> Create(
      LogCopiesOptions options);
  ~LogCopies();

  // Returns once a majority has the record; errors as above, after which the
  // record may count or not.
  absl::Status Append(const std::string& record);
  // OK if a majority says, from now on, that there is no later coordinator.
  absl::Status Confirm();

 private:
  struct Copy {
    std::unique_ptr<RemoteFiles> link;
    std::thread thread;
    uint64_t answered = 0;  // The last round that it answered.
    absl::Time heard = absl::InfinitePast();
    std::string error = "not asked yet";
  };
  explicit LogCopies(LogCopiesOptions options);
  absl::Status Start();
  void Serve(size_t keeper_idx);
  bool MayAsk(size_t keeper_idx) const;
  bool NeedsCall(size_t keeper_idx) const;
  // Waits for a majority that has answered this round and has all records.
  absl::Status Wait(std::unique_lock<std::mutex>* lock, uint64_t round);
  bool HasMajority(uint64_t round) const;
  void CheckAlone();
  std::string Errors() const;

  const LogCopiesOptions options_;
  const size_t first_;  // Of keepers; their number: none of them.
  std::mutex mutex_;    // Guards what follows.
  std::condition_variable changed_;
  LogLeader leader_;
  std::vector<Copy> copies_;
  uint64_t round_ = 0;
  absl::Time with_majority_;  // When one was last there.
  bool ending_ = false;
  // on_deposed has been called, or Create() still answers in its place.
  bool told_ = true;
};

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_SUCCESSION_LOG_COPIES_H_
