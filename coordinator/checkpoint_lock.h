// Keeps a folder of checkpoints to one job at a time. An s3:// prefix is kept
// by an ObjectLease instead of what follows.
//
// A lock of the kernel keeps others out for as long as this process lives, on
// one host and on shared folders that support such locks. The file's content
// names the owner, so that a job whose lock was lost or could not be had sees
// before each commit whether another one has taken over.

#ifndef MILLRACE_COORDINATOR_CHECKPOINT_LOCK_H_
#define MILLRACE_COORDINATOR_CHECKPOINT_LOCK_H_

#include <memory>
#include <stop_token>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/objects/object_files.h"
#include "coordinator/objects/object_lease.h"

namespace millrace {

class CheckpointLock {
 public:
  // Makes the folder if need be. `owner`: the job, for people, and no other
  // job's. FailedPrecondition, naming the other job, if one holds the folder;
  // PermissionDenied or Internal, with the path, if it cannot be written.
  // With `needs_lock` also FailedPrecondition if the file system has no locks.
  //
  // `objects` finds the bucket of an s3:// prefix; errors are then those of
  // ObjectLease. Without `needs_lock`, waits until a job that was killed counts
  // as gone, or until a stop is requested.
  static absl::StatusOr<std::unique_ptr<CheckpointLock>> Take(
      const std::string& directory, const std::string& owner,
      bool needs_lock = false, ObjectFiles* objects = nullptr,
      std::stop_token stop = {});
  ~CheckpointLock();
  CheckpointLock(const CheckpointLock&) = delete;
  CheckpointLock& operator=(const CheckpointLock&) = delete;

  // Aborted, naming the other job, once one has taken over.
  absl::Status CheckHeld() const;

 private:
  CheckpointLock(int fd, std::string path, std::string owner)
      : fd_(fd), path_(std::move(path)), owner_(std::move(owner)) {}
  explicit CheckpointLock(std::unique_ptr<ObjectLease> lease)
      : lease_(std::move(lease)) {}

  const std::unique_ptr<ObjectLease> lease_;  // Null: what follows serves.
  const int fd_ = -1;
  const std::string path_;
  const std::string owner_;
};

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_CHECKPOINT_LOCK_H_
