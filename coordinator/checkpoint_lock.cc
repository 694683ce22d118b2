#include "coordinator/checkpoint_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "planner/job/object_path.h"

namespace millrace {
namespace {

constexpr char kLockName[] = "/.owner";
constexpr int64_t kMostOwnerBytes = 4096;

std::string OwnerIn(const std::string& path) {
  const absl::StatusOr<std::string> owner = ReadFile(path, kMostOwnerBytes);
  return owner.ok() && !owner->empty() ? *owner : "an unknown job";
}

absl::StatusOr<std::unique_ptr<ObjectLease>> TakeLease(
    ObjectFiles& objects, const std::string& directory,
    const std::string& owner, bool waits, std::stop_token stop) {
  ASSIGN_OR_RETURN(const ObjectPath path, ParseObjectPath(directory));
  ObjectLeaseOptions options = {
      .key = (path.key.empty() ? "" : path.key + "/") + (kLockName + 1),
      .owner = owner,
      .stop = std::move(stop)};
  ASSIGN_OR_RETURN(options.store, objects.StoreOf(directory));
  if (waits) options.wait = options.term + absl::Seconds(2);
  return ObjectLease::Take(std::move(options));
}

absl::Status LockError(int error, const std::string& path) {
  const std::string text =
      absl::StrCat("cannot write ", path, ": ", std::strerror(error));
  return error == EACCES || error == EROFS ? absl::PermissionDeniedError(text)
                                           : absl::InternalError(text);
}

}  // namespace

absl::StatusOr<std::unique_ptr<CheckpointLock>> CheckpointLock::Take(
    const std::string& directory, const std::string& owner, bool needs_lock,
    ObjectFiles* objects, std::stop_token stop) {
  if (objects != nullptr && IsObjectPath(directory)) {
    ASSIGN_OR_RETURN(
        std::unique_ptr<ObjectLease> lease,
        TakeLease(*objects, directory, owner, !needs_lock, std::move(stop)));
    return std::unique_ptr<CheckpointLock>(
        new CheckpointLock(std::move(lease)));
  }
  RETURN_IF_ERROR(MakeDirectories(directory));
  const std::string path = directory + kLockName;
  const int fd =
      open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (fd < 0) return LockError(errno, path);
  std::unique_ptr<CheckpointLock> lock(new CheckpointLock(fd, path, owner));
  // Whoever may write to the folder may lock it. Another user's file stays.
  struct stat folder {};
  if (stat(directory.c_str(), &folder) == 0) {
    static_cast<void>(fchmod(fd, folder.st_mode & 0666));
  }
  // Folders without locks (some network file systems) have the owner's name.
  const bool locked = flock(fd, LOCK_EX | LOCK_NB) == 0;
  if (!locked && errno != EWOULDBLOCK && needs_lock) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the file system of ", directory, " has no locks (",
        std::strerror(errno),
        "), which fault.coordinator_replicas needs there; name another "
        "checkpoint.directory, or set fault.coordinator_replicas to 0"));
  }
  if (!locked && errno == EWOULDBLOCK) {
    return absl::FailedPreconditionError(
        absl::StrCat(directory, " is in use by ", OwnerIn(path),
                     "; wait for its end, stop it, or name another "
                     "checkpoint.directory"));
  }
  if (ftruncate(fd, 0) != 0 || pwrite(fd, owner.data(), owner.size(), 0) !=
                                   static_cast<ssize_t>(owner.size())) {
    return LockError(errno, path);
  }
  return lock;
}

CheckpointLock::~CheckpointLock() {
  if (fd_ >= 0) close(fd_);
}

absl::Status CheckpointLock::CheckHeld() const {
  if (lease_ != nullptr) return lease_->CheckHeld();
  const std::string owner = OwnerIn(path_);
  if (owner == owner_) return absl::OkStatus();
  return absl::AbortedError(
      absl::StrCat("the folder has been taken over by ", owner,
                   ", so this job commits nothing there any more"));
}

}  // namespace millrace
