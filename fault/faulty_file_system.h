// A file system in memory that can crash, fill up, fail and flip bits on
// purpose: what checkpoints must survive, made repeatable.
//
// It keeps two versions of everything: what processes see, and what is durable.
// Sync() makes a file's bytes durable, SyncDirectory() a folder's entries.
// A crash keeps what is durable and, of the rest, what its CrashOutcome says.
//
// Every call that changes something is an operation, numbered from 1; removing
// a tree is one operation for each file and folder in it.

#ifndef MILLRACE_FAULT_FAULTY_FILE_SYSTEM_H_
#define MILLRACE_FAULT_FAULTY_FILE_SYSTEM_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fault/file_system.h"

namespace millrace {

enum class CrashOutcome {
  kNothingLost,      // The cache reached the disk just in time.
  kAllUnsyncedLost,  // None of it did.
  // Each file keeps a random prefix of the unsynced bytes (or zeros in their
  // place), and each folder a random subset of the unsynced changes.
  kRandom,
};

// Thread-safe. Paths are plain strings; "a/b" and "a//b/" name the same file.
class FaultyFileSystem : public FileSystem {
 public:
  FaultyFileSystem();
  ~FaultyFileSystem() override;

  // Operations so far.
  int64_t num_operations() const;

  // Operation number `operation` and all after it do not happen and return
  // Unavailable, until Restart().
  void CrashAt(int64_t operation);
  bool crashed() const;
  // Changes to the state that a reboot finds. Deterministic in `seed`. Clears
  // all planned faults.
  void Restart(CrashOutcome outcome, uint64_t seed);

  // Operation number `operation` does nothing and returns `status`, once.
  void FailAt(int64_t operation, absl::Status status);

  // Appends beyond this many bytes in all files write what fits and return
  // ResourceExhausted. Negative: no limit.
  void SetCapacity(int64_t num_bytes);
  int64_t used_bytes() const;

  // The content of a file, to damage it: NotFound if there is none.
  absl::StatusOr<std::string> Content(const std::string& path) const;
  absl::Status SetContent(const std::string& path, std::string content);

  absl::StatusOr<std::unique_ptr<WritableFile>> Create(
      const std::string& path) override;
  absl::StatusOr<std::unique_ptr<RandomAccessFile>> Open(
      const std::string& path) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status SyncDirectory(const std::string& path) override;
  absl::Status MakeDirectories(const std::string& path) override;
  absl::Status Remove(const std::string& path) override;
  bool Exists(const std::string& path) override;
  absl::StatusOr<std::vector<std::string>> List(
      const std::string& path) override;

 private:
  class MemoryFile;
  class MemoryReader;
  struct Node;
  struct EntryChange;

  absl::Status BeginOperation(const std::string& what);
  std::shared_ptr<Node> Find(const std::string& path) const;
  absl::StatusOr<std::shared_ptr<Node>> FindFolder(
      const std::string& path) const;
  absl::Status RemoveEntry(Node& folder, const std::string& name,
                           const std::string& path);
  int64_t BytesUnder(const Node& node) const;
  void CrashNode(Node& node, CrashOutcome outcome, std::mt19937_64& random);

  mutable std::mutex mutex_;
  std::shared_ptr<Node> root_;
  int64_t num_operations_ = 0;
  int64_t crash_at_ = -1;
  bool crashed_ = false;
  int64_t capacity_bytes_ = -1;
  std::map<int64_t, absl::Status> failures_;
};

}  // namespace millrace

#endif  // MILLRACE_FAULT_FAULTY_FILE_SYSTEM_H_
