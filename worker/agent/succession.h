// An agent's part in the choice of the coordinator: it keeps the coordinator's
// log, notices when nobody stores anything in it any more, and asks the other
// keepers to let its own host have the next one (coordinator/succession).

#ifndef MILLRACE_WORKER_AGENT_SUCCESSION_H_
#define MILLRACE_WORKER_AGENT_SUCCESSION_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/files/file_server.h"
#include "coordinator/succession/keepers.h"
#include "coordinator/succession/log_keeper.h"

namespace millrace {

// Thread-safe.
class Succession {
 public:
  // Keeps the log that coordinators store by way of `files`, which must be
  // destroyed before this object: its threads call it.
  Succession(uint64_t id, std::string secret, FileServer* files);
  ~Succession();

  // This host may have the coordinator of that term, with that log.
  struct Won {
    int64_t term;
    std::vector<std::string> records;
    int32_t taken_over_from;  // The agent that had it before; -1: this one.
  };
  // Readable while there is one, for poll().
  int event_fd() const { return event_fd_; }
  // The agent then starts the coordinator, or calls Follow().
  std::optional<Won> TakeWon();

  // This agent has the run's first coordinator, which nobody chose.
  void Lead();
  // The coordinator that this agent had, of that term, has ended by itself: the
  // agent asks for the place again, at once.
  void StandAfter(int64_t ended_term);
  // This agent has no coordinator any more, and waits for another's.
  void Follow();

  bool has_log() const;
  int64_t term() const;  // The latest that this keeper knows of.

 private:
  protocol::KeepAnswer Answer(const protocol::KeepRequest& request);
  void Run();
  // Asks all keepers who would promise, and if enough would, for the promises.
  void Stand(std::unique_lock<std::mutex>* lock);
  // Asks all keepers once. The log of the winner, if a majority agrees.
  std::optional<std::vector<std::string>> Ask(
      const std::vector<Keeper>& keepers, int64_t term, bool only_asks,
      std::unique_lock<std::mutex>* lock);
  std::optional<size_t> OwnIndex(const std::vector<Keeper>& keepers) const;

  const std::string secret_;
  FileServer* const files_;
  const int event_fd_;
  mutable std::mutex mutex_;  // Guards what follows.
  std::condition_variable changed_;
  LogKeeper keeper_;
  // Of the log that is kept; read again when the log has another writer.
  std::vector<Keeper> keepers_;
  int64_t keepers_term_ = 0;
  bool leads_ = false;  // Has the coordinator, or is about to.
  int64_t ended_term_ = 0;
  bool stands_at_once_ = false;
  absl::Time stood_;
  int64_t latest_term_ = 0;
  int32_t leader_ = -1;  // The agent whose coordinator stored last.
  std::optional<Won> won_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_AGENT_SUCCESSION_H_
