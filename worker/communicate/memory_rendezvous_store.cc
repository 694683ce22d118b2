#include "worker/communicate/memory_rendezvous_store.h"

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace millrace {

absl::Status MemoryRendezvousStore::Set(const std::string& key,
                                        const std::string& value) {
  std::lock_guard lock(mutex_);
  values_[key] = value;
  changed_.notify_all();
  return absl::OkStatus();
}

absl::StatusOr<std::string> MemoryRendezvousStore::Get(const std::string& key,
                                                       absl::Duration timeout) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, absl::ToChronoMilliseconds(timeout),
                         [&] { return values_.contains(key); })) {
    return absl::DeadlineExceededError(absl::StrCat(
        "no value for ", key, " within ", absl::FormatDuration(timeout)));
  }
  return values_[key];
}

}  // namespace millrace
