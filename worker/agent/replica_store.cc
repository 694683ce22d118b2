#include "worker/agent/replica_store.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/host_memory.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "fault/manifest.h"
#include "worker/agent/parameter_hash.h"

namespace millrace {
namespace {

// A memory file is sparse: every slot has so many bytes of addresses, and takes
// memory for what is written. Its header is written last.
constexpr int64_t kSlotBytes = int64_t{1} << 40;
constexpr int64_t kDataOffset = 4096;
constexpr int64_t kEntryOffset = kSlotBytes / 4 * 3;
constexpr int64_t kMaxEntryBytes = kSlotBytes / 4;
constexpr size_t kMaxSlots = 4096;
constexpr size_t kMostKeptSlots = 2;
constexpr uint64_t kMagic = 0x4d696c6c72616365;

// Written and read by the same program on one machine.
struct Header {
  uint64_t magic;
  int64_t generation;
  int64_t step;
  int64_t bytes;
  int64_t entry_bytes;
  int32_t rank;
  int32_t num_ranks;
  int32_t kind;
  int32_t reserved;
  uint64_t hash;
};

// From the checksums that were made when the part was written, so no byte is
// read for it.
absl::StatusOr<uint64_t> HashOfPart(absl::string_view entry) {
  ASSIGN_OR_RETURN(const ManifestFile file, ParsePart(entry));
  std::vector<std::vector<uint64_t>> checksums;
  for (const ManifestPiece& piece : file.pieces) {
    checksums.push_back(piece.checksums);
  }
  return HashReplica(checksums);
}

absl::Status MemoryFileError(absl::string_view doing) {
  const int error = errno;
  const std::string message =
      absl::StrCat("cannot ", doing, " a memory file: ", strerror(error));
  return error == ENOMEM || error == ENOSPC
             ? absl::ResourceExhaustedError(message)
             : absl::InternalError(message);
}

class PartFile : public WritableFile {
 public:
  explicit PartFile(ReplicaStore::Writer* writer) : writer_(*writer) {}
  absl::Status Append(const void* data, int64_t num_bytes) override {
    return writer_.Append(data, num_bytes);
  }
  absl::Status Sync() override { return absl::OkStatus(); }
  absl::Status Close() override { return absl::OkStatus(); }

 private:
  ReplicaStore::Writer& writer_;
};

}  // namespace

absl::StatusOr<int> ReplicaStore::MakeMemoryFile() {
  const int fd = memfd_create("millrace-replicas", MFD_CLOEXEC);
  if (fd < 0) return MemoryFileError("make");
  return fd;
}

absl::StatusOr<std::unique_ptr<ReplicaStore>> ReplicaStore::Open(int fd) {
  std::unique_ptr<ReplicaStore> store(new ReplicaStore(fd));
  RETURN_IF_ERROR(store->FindParts());
  return store;
}

ReplicaStore::~ReplicaStore() { close(fd_); }

absl::Status ReplicaStore::FindParts() {
  struct stat status = {};
  if (fstat(fd_, &status) != 0) return MemoryFileError("read");
  const int64_t num_slots = (status.st_size + kSlotBytes - 1) / kSlotBytes;
  taken_.resize(static_cast<size_t>(num_slots));
  for (int64_t slot = 0; slot < num_slots; ++slot) {
    Header header = {};
    const ssize_t count =
        pread(fd_, &header, sizeof(header), slot * kSlotBytes);
    const bool is_part =
        count == sizeof(header) && header.magic == kMagic &&
        header.bytes >= 0 && header.bytes <= kEntryOffset - kDataOffset &&
        header.entry_bytes >= 0 && header.entry_bytes <= kMaxEntryBytes;
    if (!is_part) {
      // What the process before had begun, or left to the next part.
      const int64_t begin = slot * kSlotBytes + kDataOffset;
      const off_t end = lseek(fd_, begin, SEEK_HOLE);
      KeepSlot(slot, end < begin ? 0 : end - begin);
      continue;
    }
    const ReplicaPart part = {{Generation{header.generation}, header.step},
                              Rank{header.rank}};
    taken_[slot] = true;
    parts_[part] = {.index = slot,
                    .replica = {.part = part,
                                .num_ranks = header.num_ranks,
                                .kind = static_cast<ReplicaKind>(header.kind),
                                .bytes = header.bytes,
                                .hash = header.hash},
                    .entry_bytes = header.entry_bytes};
  }
  return absl::OkStatus();
}

std::vector<StoredReplica> ReplicaStore::List() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<StoredReplica> list;
  for (const auto& [part, slot] : parts_) list.push_back(slot.replica);
  return list;
}

int64_t ReplicaStore::TakeSlot() {
  if (!kept_bytes_.empty()) {
    const int64_t slot = kept_bytes_.begin()->first;
    kept_bytes_.erase(kept_bytes_.begin());
    taken_[slot] = true;
    return slot;
  }
  const auto free = std::find(taken_.begin(), taken_.end(), false);
  if (free != taken_.end()) {
    *free = true;
    return free - taken_.begin();
  }
  taken_.push_back(true);
  return static_cast<int64_t>(taken_.size()) - 1;
}

void ReplicaStore::EraseHeader(int64_t slot) {
  const Header none = {};
  static_cast<void>(pwrite(fd_, &none, sizeof(none), slot * kSlotBytes));
}

void ReplicaStore::FreeSlot(int64_t slot) {
  // The header first: were this process to end in between, the part is gone.
  EraseHeader(slot);
  static_cast<void>(fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                              slot * kSlotBytes, kSlotBytes));
  taken_[slot] = false;
}

void ReplicaStore::KeepSlot(int64_t slot, int64_t num_bytes) {
  EraseHeader(slot);
  taken_[slot] = false;
  kept_bytes_[slot] = num_bytes;
}

void ReplicaStore::FreeKeptSlots(size_t most_kept) {
  while (kept_bytes_.size() > most_kept) {
    FreeSlot(kept_bytes_.rbegin()->first);
    kept_bytes_.erase(std::prev(kept_bytes_.end()));
  }
}

absl::StatusOr<std::unique_ptr<ReplicaStore::Writer>> ReplicaStore::Begin(
    const StoredReplica& replica) {
  const std::optional<HostMemory> host = ReadHostMemory();
  std::lock_guard<std::mutex> lock(mutex_);
  const int64_t kept_bytes =
      kept_bytes_.empty() ? 0 : kept_bytes_.begin()->second;
  if (host.has_value() &&
      static_cast<double>(host->available + kept_bytes - replica.bytes) <
          kShareLeftFree * static_cast<double>(host->total)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the host has ", FormatBytes(host->available),
                     " of memory left, and a copy of the training state takes ",
                     FormatBytes(replica.bytes)));
  }
  if (taken_.size() >= kMaxSlots &&
      std::find(taken_.begin(), taken_.end(), false) == taken_.end()) {
    return absl::ResourceExhaustedError("too many parts in memory");
  }
  return std::unique_ptr<Writer>(new Writer(this, TakeSlot(), replica));
}

ReplicaStore::Writer::~Writer() {
  if (committed_) return;
  std::lock_guard<std::mutex> lock(store_->mutex_);
  store_->FreeSlot(slot_);
}

absl::Status ReplicaStore::Writer::Append(const void* data, int64_t num_bytes) {
  if (bytes_ + num_bytes > kEntryOffset - kDataOffset) {
    return absl::ResourceExhaustedError("the part is too large");
  }
  RETURN_IF_ERROR(store_->WriteAt(slot_ * kSlotBytes + kDataOffset + bytes_,
                                  data, num_bytes));
  bytes_ += num_bytes;
  return absl::OkStatus();
}

absl::Status ReplicaStore::Writer::Commit(absl::string_view entry) {
  CHECK(!committed_);
  const auto entry_bytes = static_cast<int64_t>(entry.size());
  if (entry_bytes > kMaxEntryBytes) {
    return absl::ResourceExhaustedError("the part's entry is too large");
  }
  ASSIGN_OR_RETURN(replica_.hash, HashOfPart(entry));
  replica_.bytes = bytes_;
  RETURN_IF_ERROR(store_->WriteAt(slot_ * kSlotBytes + kEntryOffset,
                                  entry.data(), entry_bytes));
  const ReplicaPart& part = replica_.part;
  const Header header = {.magic = kMagic,
                         .generation = ToInt(part.set.generation),
                         .step = part.set.step,
                         .bytes = bytes_,
                         .entry_bytes = entry_bytes,
                         .rank = ToInt(part.rank),
                         .num_ranks = replica_.num_ranks,
                         .kind = static_cast<int32_t>(replica_.kind),
                         .reserved = 0,
                         .hash = replica_.hash};
  std::lock_guard<std::mutex> lock(store_->mutex_);
  if (const auto old = store_->parts_.find(part); old != store_->parts_.end()) {
    store_->FreeSlot(old->second.index);
  }
  RETURN_IF_ERROR(store_->WriteAt(slot_ * kSlotBytes, &header, sizeof(header)));
  store_->parts_[part] = {
      .index = slot_, .replica = replica_, .entry_bytes = entry_bytes};
  committed_ = true;
  // Here, where nobody waits. The parts of a step and of its partners' need no
  // more.
  store_->FreeKeptSlots(kMostKeptSlots);
  return absl::OkStatus();
}

absl::StatusOr<ReplicaStore::Slot> ReplicaStore::Find(
    const ReplicaPart& part) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = parts_.find(part);
  if (found == parts_.end()) {
    return absl::NotFoundError(
        absl::StrCat("the state of rank ", ToInt(part.rank), " after step ",
                     part.set.step, " is not in this worker's memory"));
  }
  return found->second;
}

absl::StatusOr<std::string> ReplicaStore::Entry(const ReplicaPart& part) const {
  ASSIGN_OR_RETURN(const Slot slot, Find(part));
  std::string entry(static_cast<size_t>(slot.entry_bytes), '\0');
  RETURN_IF_ERROR(ReadAt(slot.index * kSlotBytes + kEntryOffset,
                         slot.entry_bytes, entry.data()));
  return entry;
}

absl::Status ReplicaStore::Read(const ReplicaPart& part, int64_t offset,
                                int64_t num_bytes, void* out) const {
  ASSIGN_OR_RETURN(const Slot slot, Find(part));
  if (offset < 0 || num_bytes < 0 || offset > slot.replica.bytes ||
      num_bytes > slot.replica.bytes - offset) {
    return absl::InternalError("a part in memory is shorter than expected");
  }
  return ReadAt(slot.index * kSlotBytes + kDataOffset + offset, num_bytes, out);
}

template <typename Condition>
void ReplicaStore::DropIf(const Condition& condition) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::erase_if(parts_, [&](const auto& entry) {
    if (!condition(entry.first.set)) return false;
    KeepSlot(entry.second.index, entry.second.replica.bytes);
    return true;
  });
}

void ReplicaStore::DropAfter(int64_t step) {
  DropIf([&](const ReplicaSet& other) { return other.step > step; });
}

void ReplicaStore::DropOlder(const ReplicaSet& set) {
  DropIf([&](const ReplicaSet& other) { return other < set; });
}

void ReplicaStore::Clear() {
  DropIf([](const ReplicaSet&) { return true; });
  std::lock_guard<std::mutex> lock(mutex_);
  FreeKeptSlots(/*most_kept=*/0);
}

void ReplicaStore::DropBefore(const ReplicaSet& set) {
  std::optional<ReplicaSet> whole;
  for (const StoredReplica& stored : List()) {
    const ReplicaSet& other = stored.part.set;
    if (other.generation == set.generation && other.step + 2 <= set.step &&
        (!whole.has_value() || *whole < other)) {
      whole = other;
    }
  }
  if (!whole.has_value()) return;
  DropOlder(*whole);
}

absl::Status ReplicaStore::WriteAt(int64_t offset, const void* data,
                                   int64_t num_bytes) {
  const auto* next = static_cast<const char*>(data);
  while (num_bytes > 0) {
    const ssize_t count =
        pwrite(fd_, next, static_cast<size_t>(num_bytes), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return MemoryFileError("write to");
    next += count;
    offset += count;
    num_bytes -= count;
  }
  return absl::OkStatus();
}

absl::Status ReplicaStore::ReadAt(int64_t offset, int64_t num_bytes,
                                  void* out) const {
  auto* next = static_cast<char*>(out);
  while (num_bytes > 0) {
    const ssize_t count =
        pread(fd_, next, static_cast<size_t>(num_bytes), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return MemoryFileError("read");
    next += count;
    offset += count;
    num_bytes -= count;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<WritableFile>> ReplicaFile::Create(
    const std::string&) {
  ASSIGN_OR_RETURN(writer_, store_->Begin(replica_));
  return std::make_unique<PartFile>(writer_.get());
}

absl::Status ReplicaFile::Commit(absl::string_view entry) {
  CHECK(writer_ != nullptr);
  return writer_->Commit(entry);
}

absl::StatusOr<std::unique_ptr<RandomAccessFile>> ReplicaFile::Open(
    const std::string&) {
  return absl::UnimplementedError("a part is read through its store");
}
absl::Status ReplicaFile::Rename(const std::string&, const std::string&) {
  return absl::UnimplementedError("a part in memory has no name");
}
absl::StatusOr<std::vector<std::string>> ReplicaFile::List(const std::string&) {
  return std::vector<std::string>();
}

}  // namespace millrace
