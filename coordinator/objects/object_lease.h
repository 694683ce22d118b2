// Keeps a folder of objects to one job at a time, by an object that names the
// owner and that the owner writes again every few seconds.

#ifndef MILLRACE_COORDINATOR_OBJECTS_OBJECT_LEASE_H_
#define MILLRACE_COORDINATOR_OBJECTS_OBJECT_LEASE_H_

#include <condition_variable>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/objects/object_store.h"

namespace millrace {

struct ObjectLeaseOptions {
  std::shared_ptr<ObjectStore> store;
  std::string key;    // Of the object that names the owner.
  std::string owner;  // For people, and no other job's.
  // An owner that has not written for so long, by the server's clock, is gone.
  absl::Duration term = absl::Seconds(15);
  // How long Take() waits for an owner to be gone.
  absl::Duration wait = absl::ZeroDuration();
  // Once a stop is requested, Take() waits no more.
  std::stop_token stop = {};
};

class ObjectLease {
 public:
  // FailedPrecondition, naming the other job, if one holds the folder. Other
  // errors are the store's.
  static absl::StatusOr<std::unique_ptr<ObjectLease>> Take(
      ObjectLeaseOptions options);
  // Gives it back, unless another job has it.
  ~ObjectLease();
  ObjectLease(const ObjectLease&) = delete;
  ObjectLease& operator=(const ObjectLease&) = delete;

  // Asks the store. Aborted, naming the other job, once one has taken over.
  absl::Status CheckHeld();

 private:
  explicit ObjectLease(ObjectLeaseOptions options);
  absl::Status TryTake();
  absl::Status Write(const WriteCondition& condition);
  void RenewUntilEnd();

  const ObjectLeaseOptions options_;
  std::mutex mutex_;
  std::condition_variable ends_changed_;
  bool ends_ = false;
  std::thread renewal_;
};

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_OBJECTS_OBJECT_LEASE_H_
