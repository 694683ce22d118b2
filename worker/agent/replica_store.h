// The parts of the training state that one worker keeps in host memory: its own
// and those of the ranks whose partner it is (fault/replicas.h).
//
// They lie in a memory file that the worker's agent holds open too. So the
// processes of a worker, which follow one another, find what the one before
// kept, however that ended; what it was writing just then does not count. The
// memory is given back when agent and worker have ended.

#ifndef MILLRACE_WORKER_AGENT_REPLICA_STORE_H_
#define MILLRACE_WORKER_AGENT_REPLICA_STORE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "fault/file_system.h"
#include "fault/replicas.h"

namespace millrace {

struct StoredReplica {
  ReplicaPart part;
  int32_t num_ranks = 0;
  ReplicaKind kind = ReplicaKind::kOwn;
  int64_t bytes = 0;  // The part's file, as WriteCheckpointPart() writes it.
  uint64_t hash = 0;  // HashReplica() of its checksums; Commit() sets it.
};

// Thread-safe.
class ReplicaStore {
 public:
  // Hosts keep at least this share of their memory free of new parts.
  static constexpr double kShareLeftFree = 0.05;

  // A memory file for Open(); the caller closes it. Internal if the system has
  // none to give.
  static absl::StatusOr<int> MakeMemoryFile();
  // Takes over `fd` and finds the parts in it.
  static absl::StatusOr<std::unique_ptr<ReplicaStore>> Open(int fd);
  ~ReplicaStore();

  std::vector<StoredReplica> List() const;

  // Writes one part. The part counts from Commit() on; without it, the part is
  // dropped with the writer. The store must outlive the writer.
  class Writer {
   public:
    ~Writer();
    absl::Status Append(const void* data, int64_t num_bytes);
    // `entry` is WriteCheckpointPart()'s; DataLoss or InvalidArgument if not.
    absl::Status Commit(absl::string_view entry);
    int64_t bytes() const { return bytes_; }

   private:
    friend class ReplicaStore;
    Writer(ReplicaStore* store, int64_t slot, const StoredReplica& replica)
        : store_(store), slot_(slot), replica_(replica) {}
    ReplicaStore* const store_;
    const int64_t slot_;
    StoredReplica replica_;
    int64_t bytes_ = 0;
    bool committed_ = false;
  };
  // `replica.bytes` is about how many will come. ResourceExhausted if the host
  // would have too little memory left. A part that is there already is
  // replaced when the new one is committed.
  absl::StatusOr<std::unique_ptr<Writer>> Begin(const StoredReplica& replica);

  // NotFound if the part is not there.
  absl::StatusOr<std::string> Entry(const ReplicaPart& part) const;
  // The bytes of the part's file. Internal if the part has fewer.
  absl::Status Read(const ReplicaPart& part, int64_t offset, int64_t num_bytes,
                    void* out) const;

  // What follows leaves the memory of a dropped part to the next one that is
  // begun, since giving pages back and having others zeroed takes as long as
  // copying. Clear() alone gives all of it back.
  //
  // Drops the parts of steps after `step`: of a history that was rolled back.
  void DropAfter(int64_t step);
  // Drops the parts of sets before `set`.
  void DropOlder(const ReplicaSet& set);
  void Clear();
  // Before a part of `set` is added, which is when its generation's sets of two
  // steps before and earlier are whole everywhere: drops all parts that are
  // older than the newest of these. Drops nothing where there is none. That of
  // the step before may still be on its way elsewhere.
  void DropBefore(const ReplicaSet& set);

 private:
  struct Slot {
    int64_t index = 0;
    StoredReplica replica;
    int64_t entry_bytes = 0;
  };

  explicit ReplicaStore(int fd) : fd_(fd) {}
  absl::Status FindParts();
  // All with mutex_ held.
  int64_t TakeSlot();
  void FreeSlot(int64_t slot);  // Gives its memory back.
  void EraseHeader(int64_t slot);
  // Leaves its memory to the next part.
  void KeepSlot(int64_t slot, int64_t num_bytes);
  void FreeKeptSlots(size_t most_kept);  // Those above so many.
  template <typename Condition>
  void DropIf(const Condition& condition);
  absl::StatusOr<Slot> Find(const ReplicaPart& part) const;
  absl::Status WriteAt(int64_t offset, const void* data, int64_t num_bytes);
  absl::Status ReadAt(int64_t offset, int64_t num_bytes, void* out) const;

  const int fd_;
  mutable std::mutex mutex_;
  std::map<ReplicaPart, Slot> parts_;
  std::vector<bool> taken_;                // By slot.
  std::map<int64_t, int64_t> kept_bytes_;  // Of slots that KeepSlot() left.
};

// The file system to which WriteCheckpointPart() writes one part that goes to
// the store. Call Commit() with what it returned.
class ReplicaFile : public FileSystem {
 public:
  // `store` is borrowed.
  ReplicaFile(ReplicaStore* store, const StoredReplica& replica)
      : store_(store), replica_(replica) {}
  absl::StatusOr<std::unique_ptr<WritableFile>> Create(
      const std::string& path) override;
  absl::Status Commit(absl::string_view entry);

  absl::Status SyncDirectory(const std::string&) override { return {}; }
  absl::Status MakeDirectories(const std::string&) override { return {}; }
  absl::Status Remove(const std::string&) override { return {}; }
  bool Exists(const std::string&) override { return false; }
  absl::StatusOr<std::unique_ptr<RandomAccessFile>> Open(
      const std::string& path) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::StatusOr<std::vector<std::string>> List(
      const std::string& path) override;

 private:
  ReplicaStore* const store_;
  const StoredReplica replica_;
  std::unique_ptr<ReplicaStore::Writer> writer_;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_AGENT_REPLICA_STORE_H_
