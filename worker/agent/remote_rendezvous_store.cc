#include "worker/agent/remote_rendezvous_store.h"

#include "absl/strings/str_cat.h"
#include "base/clock.h"

namespace millrace {
namespace {

// The coordinator answers once the value is there, however often it is asked.
// It forgets who asked over a connection that was lost.
constexpr absl::Duration kAskAgainAfter = absl::Seconds(1);

}  // namespace

absl::Status RemoteRendezvousStore::Set(const std::string& key,
                                        const std::string& value) {
  protocol::ToCoordinator message;
  message.set_generation(ToInt(generation_));
  message.mutable_rendezvous_set()->set_key(key);
  message.mutable_rendezvous_set()->set_value(value);
  client_->SendReliably(std::move(message));
  return absl::OkStatus();
}

absl::StatusOr<std::string> RemoteRendezvousStore::Get(const std::string& key,
                                                       absl::Duration timeout) {
  protocol::ToCoordinator message;
  message.set_generation(ToInt(generation_));
  message.mutable_rendezvous_get()->set_key(key);
  std::unique_lock<std::mutex> lock(mutex_);
  if (!values_.contains(key)) {
    const auto [asked, is_new] = asked_at_.try_emplace(key, MonotonicNow());
    if (is_new || MonotonicNow() - asked->second > kAskAgainAfter) {
      asked->second = MonotonicNow();
      client_->SendReliably(std::move(message));
    }
  }
  changed_.wait_for(lock, absl::ToChronoMilliseconds(timeout),
                    [&] { return aborted_ || values_.contains(key); });
  if (aborted_) {
    return absl::AbortedError(
        absl::StrCat("generation ", ToInt(generation_), " has ended"));
  }
  const auto found = values_.find(key);
  if (found == values_.end()) {
    return absl::DeadlineExceededError(absl::StrCat(
        "nobody set '", key, "' within ", absl::FormatDuration(timeout)));
  }
  return found->second;
}

void RemoteRendezvousStore::OnValue(const std::string& key,
                                    const std::string& value) {
  std::lock_guard<std::mutex> lock(mutex_);
  values_[key] = value;
  changed_.notify_all();
}

void RemoteRendezvousStore::Abort() {
  std::lock_guard<std::mutex> lock(mutex_);
  aborted_ = true;
  changed_.notify_all();
}

}  // namespace millrace
