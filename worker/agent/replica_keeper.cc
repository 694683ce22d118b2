#include "worker/agent/replica_keeper.h"

#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "fault/training_state.h"

namespace millrace {
namespace {

int64_t BytesOfOwned(const std::vector<StatePiece>& pieces) {
  int64_t num_bytes = 0;
  for (const StatePiece& piece : pieces) {
    if (piece.is_owner) {
      num_bytes +=
          (piece.end - piece.begin) * static_cast<int64_t>(sizeof(float));
    }
  }
  return num_bytes;
}

StoredReplica ReplicaOf(const CheckpointInfo& info, Rank rank, ReplicaKind kind,
                        const std::vector<StatePiece>& pieces) {
  return {.part = {{info.generation, info.step}, rank},
          .num_ranks = info.layout.num_ranks(),
          .kind = kind,
          .bytes = BytesOfOwned(pieces)};
}

// A network that was cut for a moment costs a try. A partner that cannot be
// reached at all must not hold up training for ever.
absl::Status PushWithPatience(ReplicaClient& client, const ReplicaStore& store,
                              const StoredReplica& replica,
                              const std::string& partner) {
  constexpr int kTries = 3;
  absl::Status status;
  for (int i = 0; i < kTries; ++i) {
    status = client.Push(store, replica, partner);
    const bool may_pass =
        absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
    if (!may_pass) break;
    absl::SleepFor(absl::Milliseconds(50));
  }
  return status;
}

// A partner that fails leaves the others theirs. The first error, if any.
absl::Status PushToAll(ReplicaClient& client, const ReplicaStore& store,
                       const StoredReplica& replica,
                       const std::vector<std::string>& partners) {
  absl::Status status;
  for (const std::string& partner : partners) {
    status.Update(PushWithPatience(client, store, replica, partner));
  }
  return status;
}

protocol::ReplicaKind KindOf(ReplicaKind kind) {
  switch (kind) {
    case ReplicaKind::kLive:
      return protocol::REPLICA_KIND_LIVE;
    case ReplicaKind::kOwn:
      return protocol::REPLICA_KIND_OWN;
    case ReplicaKind::kCopy:
      return protocol::REPLICA_KIND_COPY;
  }
  return protocol::REPLICA_KIND_COPY;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ReplicaKeeper>> ReplicaKeeper::Create(
    const std::string& host_address, const std::string& secret, int memory_fd) {
  if (memory_fd < 0) {
    ASSIGN_OR_RETURN(memory_fd, ReplicaStore::MakeMemoryFile());
  }
  std::unique_ptr<ReplicaKeeper> keeper(new ReplicaKeeper);
  ASSIGN_OR_RETURN(keeper->store_, ReplicaStore::Open(memory_fd));
  ASSIGN_OR_RETURN(
      keeper->server_,
      ReplicaServer::Create(host_address, secret, keeper->store_.get()));
  return keeper;
}

protocol::HeldReplicas ReplicaKeeper::Held() const {
  protocol::HeldReplicas held;
  held.set_address(address());
  for (const StoredReplica& stored : store_->List()) {
    protocol::HeldReplica* part = held.add_parts();
    part->set_generation(ToInt(stored.part.set.generation));
    part->set_step(stored.part.set.step);
    part->set_rank(ToInt(stored.part.rank));
    part->set_num_ranks(stored.num_ranks);
    part->set_kind(KindOf(stored.kind));
    part->set_bytes(stored.bytes);
    part->set_hash(stored.hash);
  }
  return held;
}

absl::Status ReplicaKeeper::Keep(ReplicaSnapshot snapshot,
                                 const std::atomic<bool>& aborted) {
  const StoredReplica replica =
      ReplicaOf(snapshot.info, snapshot.rank, ReplicaKind::kOwn,
                snapshot.snapshot->pieces());
  auto file = std::make_shared<ReplicaFile>(store_.get(), replica);
  const auto on_written =
      [this, file, replica, partners = std::move(snapshot.partners),
       client = std::move(snapshot.client)](
          const absl::StatusOr<std::string>& entry, double) {
        absl::Status status = entry.status();
        if (status.ok()) status = file->Commit(*entry);
        if (status.ok() && !partners.empty()) {
          StoredReplica stored = replica;
          for (const StoredReplica& other : store_->List()) {
            if (other.part == replica.part) stored = other;
          }
          status = PushToAll(*client, *store_, stored, partners);
        }
        SetError(status);
      };
  RETURN_IF_ERROR(writer_.WaitUntilIdle(aborted));
  store_->DropBefore(replica.part.set);
  return writer_.Start({.files = file,
                        .directory = "memory",
                        .info = std::move(snapshot.info),
                        .rank = snapshot.rank,
                        .snapshot = std::move(snapshot.snapshot),
                        .on_written = on_written},
                       aborted);
}

absl::Status ReplicaKeeper::KeepNow(const CheckpointInfo& info, Rank rank,
                                    const std::vector<StatePiece>& pieces) {
  ReplicaFile file(store_.get(),
                   ReplicaOf(info, rank, ReplicaKind::kLive, pieces));
  ASSIGN_OR_RETURN(const std::string entry,
                   WriteCheckpointPart(file, "memory", info, rank, pieces));
  return file.Commit(entry);
}

void ReplicaKeeper::SetError(const absl::Status& status) {
  std::lock_guard<std::mutex> lock(mutex_);
  error_ = std::string(status.message());
}

std::string ReplicaKeeper::TakeError() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (error_ == told_error_) return "";
  told_error_ = error_;
  return error_;
}

}  // namespace millrace
