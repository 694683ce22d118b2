#include "fault/faulty_file_system.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"

namespace millrace {

// One atomic change of a folder's entries: a null node removes the name; a
// rename removes one name and binds another at once.
struct FaultyFileSystem::EntryChange {
  std::string removed;
  std::string added;
  std::shared_ptr<Node> node;

  void ApplyTo(std::map<std::string, std::shared_ptr<Node>>& entries) const {
    if (!removed.empty()) entries.erase(removed);
    if (!added.empty()) entries[added] = node;
  }
};

struct FaultyFileSystem::Node {
  bool is_folder = false;
  // The content of a file as seen and as durable.
  std::string content;
  std::string durable_content;
  // The entries of a folder as seen and as durable, and the changes from one to
  // the other.
  std::map<std::string, std::shared_ptr<Node>> entries;
  std::map<std::string, std::shared_ptr<Node>> durable_entries;
  std::vector<EntryChange> unsynced_changes;

  void Change(EntryChange change) {
    change.ApplyTo(entries);
    unsynced_changes.push_back(std::move(change));
  }
};

namespace {

std::vector<std::string> PathParts(const std::string& path) {
  std::vector<std::string> parts = absl::StrSplit(path, '/', absl::SkipEmpty());
  std::erase(parts, ".");
  return parts;
}

// "a/b/c" -> {"a/b", "c"}.
std::pair<std::string, std::string> SplitPath(const std::string& path) {
  std::vector<std::string> parts = PathParts(path);
  if (parts.empty()) return {"", ""};
  std::string name = std::move(parts.back());
  parts.pop_back();
  std::string folder;
  for (const std::string& part : parts) absl::StrAppend(&folder, "/", part);
  return {folder, name};
}

absl::Status NoSuchFile(const std::string& path) {
  return absl::NotFoundError(absl::StrCat("no such file or folder: ", path));
}

}  // namespace

class FaultyFileSystem::MemoryFile : public WritableFile {
 public:
  MemoryFile(FaultyFileSystem* files, std::shared_ptr<Node> node,
             std::string path)
      : files_(files), node_(std::move(node)), path_(std::move(path)) {}

  absl::Status Append(const void* data, int64_t num_bytes) override {
    std::lock_guard lock(files_->mutex_);
    RETURN_IF_ERROR(files_->BeginOperation(absl::StrCat("append to ", path_)));
    int64_t fits = num_bytes;
    if (files_->capacity_bytes_ >= 0) {
      fits = std::clamp<int64_t>(
          files_->capacity_bytes_ - files_->BytesUnder(*files_->root_), 0,
          num_bytes);
    }
    node_->content.append(static_cast<const char*>(data),
                          static_cast<size_t>(fits));
    if (fits == num_bytes) return absl::OkStatus();
    return absl::ResourceExhaustedError(
        absl::StrCat("no space left to write ", path_));
  }

  absl::Status Sync() override {
    std::lock_guard lock(files_->mutex_);
    RETURN_IF_ERROR(files_->BeginOperation(absl::StrCat("fsync ", path_)));
    node_->durable_content = node_->content;
    return absl::OkStatus();
  }

  absl::Status Close() override {
    std::lock_guard lock(files_->mutex_);
    return files_->BeginOperation(absl::StrCat("close ", path_));
  }

 private:
  FaultyFileSystem* files_;
  std::shared_ptr<Node> node_;
  std::string path_;
};

class FaultyFileSystem::MemoryReader : public RandomAccessFile {
 public:
  MemoryReader(std::string content, std::string path)
      : content_(std::move(content)), path_(std::move(path)) {}

  int64_t size() const override {
    return static_cast<int64_t>(content_.size());
  }
  absl::Status Read(int64_t offset, int64_t num_bytes,
                    void* out) const override {
    if (offset < 0 || num_bytes < 0 || offset > size() - num_bytes) {
      return absl::DataLossError(
          absl::StrCat(path_, " is shorter than byte ", offset + num_bytes));
    }
    content_.copy(static_cast<char*>(out), static_cast<size_t>(num_bytes),
                  static_cast<size_t>(offset));
    return absl::OkStatus();
  }

 private:
  std::string content_;
  std::string path_;
};

FaultyFileSystem::FaultyFileSystem() : root_(std::make_shared<Node>()) {
  root_->is_folder = true;
}
FaultyFileSystem::~FaultyFileSystem() = default;

int64_t FaultyFileSystem::num_operations() const {
  std::lock_guard lock(mutex_);
  return num_operations_;
}

void FaultyFileSystem::CrashAt(int64_t operation) {
  std::lock_guard lock(mutex_);
  crash_at_ = operation;
}

bool FaultyFileSystem::crashed() const {
  std::lock_guard lock(mutex_);
  return crashed_;
}

void FaultyFileSystem::FailAt(int64_t operation, absl::Status status) {
  std::lock_guard lock(mutex_);
  failures_[operation] = std::move(status);
}

void FaultyFileSystem::SetCapacity(int64_t num_bytes) {
  std::lock_guard lock(mutex_);
  capacity_bytes_ = num_bytes;
}

int64_t FaultyFileSystem::used_bytes() const {
  std::lock_guard lock(mutex_);
  return BytesUnder(*root_);
}

void FaultyFileSystem::Restart(CrashOutcome outcome, uint64_t seed) {
  std::lock_guard lock(mutex_);
  std::mt19937_64 random(seed);
  CrashNode(*root_, outcome, random);
  crashed_ = false;
  crash_at_ = -1;
  capacity_bytes_ = -1;
  failures_.clear();
}

void FaultyFileSystem::CrashNode(Node& node, CrashOutcome outcome,
                                 std::mt19937_64& random) {
  if (!node.is_folder) {
    if (outcome == CrashOutcome::kAllUnsyncedLost) {
      node.content = node.durable_content;
    } else if (outcome == CrashOutcome::kRandom) {
      // Files only grow here, so the unsynced part is the tail. Its size and
      // its bytes reach the disk apart: zeros may stand where data should.
      const size_t durable =
          std::min(node.durable_content.size(), node.content.size());
      const size_t kept =
          durable + random() % (node.content.size() - durable + 1);
      const size_t written = durable + random() % (kept - durable + 1);
      node.content.resize(kept);
      std::fill(node.content.begin() + static_cast<ptrdiff_t>(written),
                node.content.end(), '\0');
    }
    node.durable_content = node.content;
    return;
  }
  if (outcome == CrashOutcome::kAllUnsyncedLost) {
    node.entries = node.durable_entries;
  } else if (outcome == CrashOutcome::kRandom) {
    node.entries = node.durable_entries;
    for (const EntryChange& change : node.unsynced_changes) {
      if (random() % 2 == 0) change.ApplyTo(node.entries);
    }
  }
  node.durable_entries = node.entries;
  node.unsynced_changes.clear();
  for (auto& [name, child] : node.entries) CrashNode(*child, outcome, random);
}

absl::Status FaultyFileSystem::BeginOperation(const std::string& what) {
  if (!crashed_) {
    ++num_operations_;
    crashed_ = num_operations_ == crash_at_;
  }
  if (crashed_) {
    return absl::UnavailableError(absl::StrCat("crashed before: ", what));
  }
  const auto failure = failures_.find(num_operations_);
  if (failure == failures_.end()) return absl::OkStatus();
  const absl::Status status = failure->second;
  failures_.erase(failure);
  return absl::Status(status.code(),
                      absl::StrCat(status.message(), " (", what, ")"));
}

std::shared_ptr<FaultyFileSystem::Node> FaultyFileSystem::Find(
    const std::string& path) const {
  std::shared_ptr<Node> node = root_;
  for (const std::string& part : PathParts(path)) {
    const auto entry = node->entries.find(part);
    if (entry == node->entries.end()) return nullptr;
    node = entry->second;
  }
  return node;
}

absl::StatusOr<std::shared_ptr<FaultyFileSystem::Node>>
FaultyFileSystem::FindFolder(const std::string& path) const {
  std::shared_ptr<Node> node = Find(path);
  if (node == nullptr || !node->is_folder) return NoSuchFile(path);
  return node;
}

int64_t FaultyFileSystem::BytesUnder(const Node& node) const {
  int64_t bytes = static_cast<int64_t>(node.content.size());
  for (const auto& [name, child] : node.entries) bytes += BytesUnder(*child);
  return bytes;
}

absl::StatusOr<std::string> FaultyFileSystem::Content(
    const std::string& path) const {
  std::lock_guard lock(mutex_);
  const std::shared_ptr<Node> node = Find(path);
  if (node == nullptr || node->is_folder) return NoSuchFile(path);
  return node->content;
}

absl::Status FaultyFileSystem::SetContent(const std::string& path,
                                          std::string content) {
  std::lock_guard lock(mutex_);
  const std::shared_ptr<Node> node = Find(path);
  if (node == nullptr || node->is_folder) return NoSuchFile(path);
  node->content = std::move(content);
  node->durable_content = node->content;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<WritableFile>> FaultyFileSystem::Create(
    const std::string& path) {
  std::lock_guard lock(mutex_);
  RETURN_IF_ERROR(BeginOperation(absl::StrCat("create ", path)));
  const auto [folder_path, name] = SplitPath(path);
  ASSIGN_OR_RETURN(const std::shared_ptr<Node> folder, FindFolder(folder_path));
  auto node = std::make_shared<Node>();
  folder->Change({.added = name, .node = node});
  return std::make_unique<MemoryFile>(this, std::move(node), path);
}

absl::StatusOr<std::unique_ptr<RandomAccessFile>> FaultyFileSystem::Open(
    const std::string& path) {
  ASSIGN_OR_RETURN(std::string content, Content(path));
  return std::make_unique<MemoryReader>(std::move(content), path);
}

absl::Status FaultyFileSystem::Rename(const std::string& from,
                                      const std::string& to) {
  std::lock_guard lock(mutex_);
  RETURN_IF_ERROR(BeginOperation(absl::StrCat("rename ", from, " to ", to)));
  const auto [from_folder, from_name] = SplitPath(from);
  const auto [to_folder, to_name] = SplitPath(to);
  if (from_folder != to_folder) {
    return absl::InvalidArgumentError(
        absl::StrCat("rename ", from, " to ", to, ": not in one folder"));
  }
  ASSIGN_OR_RETURN(const std::shared_ptr<Node> folder, FindFolder(from_folder));
  const auto entry = folder->entries.find(from_name);
  if (entry == folder->entries.end()) return NoSuchFile(from);
  folder->Change(
      {.removed = from_name, .added = to_name, .node = entry->second});
  return absl::OkStatus();
}

absl::Status FaultyFileSystem::SyncDirectory(const std::string& path) {
  std::lock_guard lock(mutex_);
  RETURN_IF_ERROR(BeginOperation(absl::StrCat("fsync folder ", path)));
  ASSIGN_OR_RETURN(const std::shared_ptr<Node> folder, FindFolder(path));
  folder->durable_entries = folder->entries;
  folder->unsynced_changes.clear();
  return absl::OkStatus();
}

absl::Status FaultyFileSystem::MakeDirectories(const std::string& path) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<Node> node = root_;
  for (const std::string& part : PathParts(path)) {
    const auto entry = node->entries.find(part);
    if (entry != node->entries.end()) {
      node = entry->second;
      continue;
    }
    RETURN_IF_ERROR(
        BeginOperation(absl::StrCat("create folder ", part, " of ", path)));
    auto child = std::make_shared<Node>();
    child->is_folder = true;
    node->Change({.added = part, .node = child});
    node = std::move(child);
  }
  return absl::OkStatus();
}

absl::Status FaultyFileSystem::RemoveEntry(Node& folder,
                                           const std::string& name,
                                           const std::string& path) {
  const std::shared_ptr<Node> node = folder.entries.at(name);
  while (!node->entries.empty()) {
    const std::string child = node->entries.begin()->first;
    RETURN_IF_ERROR(RemoveEntry(*node, child, absl::StrCat(path, "/", child)));
  }
  RETURN_IF_ERROR(BeginOperation(absl::StrCat("remove ", path)));
  folder.Change({.removed = name});
  return absl::OkStatus();
}

absl::Status FaultyFileSystem::Remove(const std::string& path) {
  std::lock_guard lock(mutex_);
  const auto [folder_path, name] = SplitPath(path);
  const std::shared_ptr<Node> folder = Find(folder_path);
  if (folder == nullptr || !folder->entries.contains(name)) {
    return absl::OkStatus();
  }
  return RemoveEntry(*folder, name, path);
}

bool FaultyFileSystem::Exists(const std::string& path) {
  std::lock_guard lock(mutex_);
  return Find(path) != nullptr;
}

absl::StatusOr<std::vector<std::string>> FaultyFileSystem::List(
    const std::string& path) {
  std::lock_guard lock(mutex_);
  ASSIGN_OR_RETURN(const std::shared_ptr<Node> folder, FindFolder(path));
  std::vector<std::string> names;
  for (const auto& [name, node] : folder->entries) names.push_back(name);
  return names;
}

}  // namespace millrace
