#include "coordinator/objects/object_lease.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/status_macros.h"

namespace millrace {
namespace {

constexpr int64_t kMostOwnerBytes = 4096;
constexpr absl::Duration kPoll = absl::Seconds(1);
constexpr int kRenewalsATerm = 3;

}  // namespace

ObjectLease::ObjectLease(ObjectLeaseOptions options)
    : options_(std::move(options)) {}

absl::StatusOr<std::unique_ptr<ObjectLease>> ObjectLease::Take(
    ObjectLeaseOptions options) {
  std::unique_ptr<ObjectLease> lease(new ObjectLease(std::move(options)));
  const absl::Time give_up_at = MonotonicNow() + lease->options_.wait;
  absl::Status taken = lease->TryTake();
  while (absl::IsFailedPrecondition(taken) || absl::IsAborted(taken)) {
    if (MonotonicNow() >= give_up_at || lease->options_.stop.stop_requested()) {
      return taken;
    }
    absl::SleepFor(kPoll);
    taken = lease->TryTake();
  }
  RETURN_IF_ERROR(taken);
  lease->renewal_ =
      std::thread([self = lease.get()] { self->RenewUntilEnd(); });
  return lease;
}

// Aborted if another job was faster.
absl::Status ObjectLease::TryTake() {
  const absl::StatusOr<ObjectContent> found =
      options_.store->Get(options_.key, kMostOwnerBytes);
  if (absl::IsNotFound(found.status())) return Write({.if_absent = true});
  RETURN_IF_ERROR(found.status());
  if (found->data != options_.owner && found->facts.age < options_.term) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the prefix is in use by ", found->data, ", which said so ",
        absl::FormatDuration(std::max(found->facts.age, absl::ZeroDuration())),
        " ago; wait for its end, stop "
        "it, or name another checkpoint.directory. A job that was killed holds "
        "it for ",
        absl::FormatDuration(options_.term), " more"));
  }
  return Write({.if_tag = found->facts.tag});
}

absl::Status ObjectLease::Write(const WriteCondition& condition) {
  const absl::Status written =
      options_.store->Put(options_.key, options_.owner, condition).status();
  if (!written.ok() && !absl::IsAborted(written)) return written;
  // The answer to a try that succeeded may have been lost, and a store without
  // conditions lets the last writer win.
  ASSIGN_OR_RETURN(const ObjectContent now,
                   options_.store->Get(options_.key, kMostOwnerBytes));
  if (now.data == options_.owner) return absl::OkStatus();
  return absl::AbortedError(
      absl::StrCat("the prefix has been taken over by ", now.data,
                   ", so this job commits nothing there any more"));
}

absl::Status ObjectLease::CheckHeld() {
  const absl::StatusOr<ObjectContent> found =
      options_.store->Get(options_.key, kMostOwnerBytes);
  if (absl::IsNotFound(found.status())) return Write({.if_absent = true});
  RETURN_IF_ERROR(found.status());
  if (found->data == options_.owner) return absl::OkStatus();
  return absl::AbortedError(
      absl::StrCat("the prefix has been taken over by ", found->data,
                   ", so this job commits nothing there any more"));
}

void ObjectLease::RenewUntilEnd() {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto interval =
      absl::ToChronoMilliseconds(options_.term / kRenewalsATerm);
  while (!ends_changed_.wait_for(lock, interval, [this] { return ends_; })) {
    lock.unlock();
    const absl::StatusOr<ObjectContent> found =
        options_.store->Get(options_.key, kMostOwnerBytes);
    absl::Status status = found.status();
    if (found.ok() && found->data == options_.owner) {
      status = Write({.if_tag = found->facts.tag});
    } else if (found.ok()) {
      status = absl::AbortedError("another job has it");
    }
    lock.lock();
    // A store that is not reached is asked again; the next commit says so.
    if (absl::IsAborted(status)) return;
  }
}

ObjectLease::~ObjectLease() {
  if (!renewal_.joinable()) return;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ends_ = true;
  }
  ends_changed_.notify_all();
  renewal_.join();
  const absl::StatusOr<ObjectContent> found =
      options_.store->Get(options_.key, kMostOwnerBytes);
  // One that stays is taken as gone after its term.
  if (found.ok() && found->data == options_.owner) {
    options_.store->Delete(options_.key).IgnoreError();
  }
}

}  // namespace millrace
