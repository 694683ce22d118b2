// Writes a rank's parts of checkpoints from snapshots, on a thread of its own,
// while training goes on.

#ifndef MILLRACE_WORKER_AGENT_CHECKPOINT_WRITER_H_
#define MILLRACE_WORKER_AGENT_CHECKPOINT_WRITER_H_

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/ids.h"
#include "fault/checkpoint.h"
#include "fault/file_system.h"
#include "worker/train/state_snapshot.h"

namespace millrace {

struct CheckpointWrite {
  // Where it is written; null: the writer's own.
  std::shared_ptr<FileSystem> files = nullptr;
  std::string directory;
  PartPlacement placement;
  CheckpointInfo info;
  Rank rank;
  std::shared_ptr<const StateSnapshot> snapshot;
  // The most that is written in a second until somebody waits for the write;
  // 0: as fast as it goes.
  int64_t bytes_per_second = 0;
  // Called on the writer's thread with WriteCheckpointPart()'s result and the
  // seconds that writing took. Not called for a write that was abandoned before
  // it ended. May still run just after Abandon() returns, so it must not use
  // what ends with the generation.
  std::function<void(const absl::StatusOr<std::string>& entry, double seconds)>
      on_written;
};

// A process has one, which outlives generations: a disk that hangs holds up its
// thread alone. Thread-safe.
class CheckpointWriter {
 public:
  explicit CheckpointWriter(FileSystem* files);  // Borrowed.
  // Abandons what is under way and waits for it to end.
  ~CheckpointWriter();

  // Begins once the write before has ended; returns then. Aborted if `aborted`,
  // which is set before Abandon() is called, becomes true meanwhile. A write
  // that is waited for, here or below, goes on at full speed.
  absl::Status Start(CheckpointWrite write, const std::atomic<bool>& aborted);
  // Waits until nothing is being written; Aborted likewise.
  absl::Status WaitUntilIdle(const std::atomic<bool>& aborted);
  // Ends the write under way after the call of the file system that it is in,
  // and removes its file unless that was complete. Returns at once.
  void Abandon();

 private:
  void Run();
  absl::StatusOr<std::string> Write(const CheckpointWrite& write);
  // With mutex_ held.
  absl::Status Wait(const std::atomic<bool>& aborted,
                    std::unique_lock<std::mutex>& lock);

  FileSystem* const files_;
  std::atomic<bool> abandoned_ = false;   // The write under way.
  std::atomic<bool> waited_for_ = false;  // Likewise.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<CheckpointWrite> write_;  // Under way, or about to begin.
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_AGENT_CHECKPOINT_WRITER_H_
