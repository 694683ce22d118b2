// The part of a worker process that handles copies of the training state in
// memory: it keeps its store, serves it to others, and copies snapshots into it
// and to the partners on a thread of its own while training goes on.

#ifndef MILLRACE_WORKER_AGENT_REPLICA_KEEPER_H_
#define MILLRACE_WORKER_AGENT_REPLICA_KEEPER_H_

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/protocol/millrace.pb.h"
#include "fault/checkpoint.h"
#include "fault/file_system.h"
#include "fault/replicas.h"
#include "worker/agent/checkpoint_writer.h"
#include "worker/agent/replica_exchange.h"
#include "worker/agent/replica_store.h"
#include "worker/train/state_snapshot.h"

namespace millrace {

struct ReplicaSnapshot {
  CheckpointInfo info;
  Rank rank{};
  std::shared_ptr<const StateSnapshot> snapshot;
  std::vector<std::string> partners;  // Addresses.
  std::shared_ptr<ReplicaClient> client;
};

// Outlives generations. Thread-safe.
class ReplicaKeeper {
 public:
  // `memory_fd` is a file of ReplicaStore::MakeMemoryFile(), which is taken
  // over; below zero: one that ends with this process.
  static absl::StatusOr<std::unique_ptr<ReplicaKeeper>> Create(
      const std::string& host_address, const std::string& secret,
      int memory_fd);

  ReplicaStore& store() { return *store_; }
  const std::string& address() const { return server_->address(); }
  protocol::HeldReplicas Held() const;
  void RefuseOlderThan(Generation generation) {
    server_->RefuseOlderThan(generation);
  }

  // Begins to copy a snapshot, once the one before is where it should be.
  // Aborted if `aborted` becomes true meanwhile. Call it only when the
  // generation's sets of two steps before and earlier are whole everywhere: all
  // but the newest of these are dropped.
  absl::Status Keep(ReplicaSnapshot snapshot, const std::atomic<bool>& aborted);
  // Waits until nothing is being copied or sent; Aborted likewise.
  absl::Status WaitUntilIdle(const std::atomic<bool>& aborted) {
    return writer_.WaitUntilIdle(aborted);
  }
  void Abandon() { writer_.Abandon(); }
  // Why the newest copy failed, once for each reason; empty if it did not.
  std::string TakeError();
  void ReportError(const absl::Status& status) { SetError(status); }

  // Puts one part into the store, at once; of a trainer that has failed.
  absl::Status KeepNow(const CheckpointInfo& info, Rank rank,
                       const std::vector<StatePiece>& pieces);

 private:
  ReplicaKeeper() : writer_(PosixFileSystem()) {}
  void SetError(const absl::Status& status);

  std::unique_ptr<ReplicaStore> store_;
  std::unique_ptr<ReplicaServer> server_;
  std::mutex mutex_;
  std::string error_;
  std::string told_error_;
  CheckpointWriter writer_;  // Its thread uses all of the above.
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_AGENT_REPLICA_KEEPER_H_
