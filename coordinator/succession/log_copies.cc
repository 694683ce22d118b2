#include "coordinator/succession/log_copies.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/status_macros.h"

namespace millrace {
namespace {

// A fourth of what a keeper trusts a silent coordinator for.
constexpr absl::Duration kBeat = absl::Milliseconds(300);
constexpr absl::Duration kAnswerLimit = absl::Seconds(2);
constexpr auto kRetryPause = std::chrono::milliseconds(100);

std::vector<uint64_t> IdsOf(const std::vector<Keeper>& keepers) {
  std::vector<uint64_t> ids;
  for (const Keeper& keeper : keepers) ids.push_back(keeper.id);
  return ids;
}

size_t IndexOfAgent(const std::vector<Keeper>& keepers, int32_t agent_idx) {
  return static_cast<size_t>(std::find_if(keepers.begin(), keepers.end(),
                                          [&](const Keeper& keeper) {
                                            return keeper.agent_idx ==
                                                   agent_idx;
                                          }) -
                             keepers.begin());
}

}  // namespace

LogCopies::LogCopies(LogCopiesOptions options)
    : options_(std::move(options)),
      first_(IndexOfAgent(options_.keepers, options_.own_agent)),
      leader_(IdsOf(options_.keepers), options_.term, options_.records),
      copies_(options_.keepers.size()),
      with_majority_(MonotonicNow()) {}

absl::StatusOr<std::unique_ptr<LogCopies>> LogCopies::Create(
    LogCopiesOptions options) {
  std::unique_ptr<LogCopies> copies(new LogCopies(std::move(options)));
  RETURN_IF_ERROR(copies->Start());
  return copies;
}

absl::Status LogCopies::Start() {
  for (size_t i = 0; i < copies_.size(); ++i) {
    const Keeper& keeper = options_.keepers[i];
    ASSIGN_OR_RETURN(copies_[i].link,
                     RemoteFiles::Create({.host = keeper.host,
                                          .address = keeper.address,
                                          .port = keeper.port,
                                          .secret = options_.secret,
                                          .answer_limit = kAnswerLimit}));
  }
  for (size_t i = 0; i < copies_.size(); ++i) {
    copies_[i].thread = std::thread([this, i] { Serve(i); });
  }
  RETURN_IF_ERROR(Confirm());
  std::lock_guard<std::mutex> lock(mutex_);
  told_ = false;
  return absl::OkStatus();
}

LogCopies::~LogCopies() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ending_ = true;
    changed_.notify_all();
  }
  for (Copy& copy : copies_) {
    if (copy.link != nullptr) copy.link->Abort();
    if (copy.thread.joinable()) copy.thread.join();
  }
}

bool LogCopies::MayAsk(size_t keeper_idx) const {
  return keeper_idx == first_ || first_ == copies_.size() ||
         copies_[first_].heard > absl::InfinitePast();
}

bool LogCopies::NeedsCall(size_t keeper_idx) const {
  return ending_ || (MayAsk(keeper_idx) &&
                     (copies_[keeper_idx].answered < round_ ||
                      leader_.RequestFor(keeper_idx).records_size() > 0));
}

void LogCopies::Serve(size_t keeper_idx) {
  std::unique_lock<std::mutex> lock(mutex_);
  Copy& copy = copies_[keeper_idx];
  while (true) {
    changed_.wait_for(lock, absl::ToChronoMilliseconds(kBeat),
                      [&] { return NeedsCall(keeper_idx); });
    if (ending_) return;
    if (!MayAsk(keeper_idx)) continue;
    const uint64_t round = round_;
    protocol::KeepRequest request = leader_.RequestFor(keeper_idx);
    request.set_agent(options_.own_agent);
    lock.unlock();
    const absl::StatusOr<protocol::KeepAnswer> answer =
        copy.link->Keep(request);
    lock.lock();
    if (ending_) return;
    if (answer.ok()) {
      leader_.OnAnswer(keeper_idx, request, *answer);
      if (answer->accepted()) {
        copy.answered = std::max(copy.answered, round);
        copy.heard = MonotonicNow();
        copy.error.clear();
      } else {
        copy.error = absl::StrCat(options_.keepers[keeper_idx].host,
                                  ": it keeps this log no more");
      }
    } else {
      copy.error = std::string(answer.status().message());
    }
    CheckAlone();
    changed_.notify_all();
    if (!copy.error.empty()) {
      changed_.wait_for(lock, kRetryPause, [this] { return ending_; });
    }
  }
}

bool LogCopies::HasMajority(uint64_t round) const {
  size_t num_answered = 0;
  for (const Copy& copy : copies_) num_answered += copy.answered >= round;
  return num_answered >= MajorityOf(copies_.size()) &&
         leader_.num_counting() == leader_.num_records();
}

void LogCopies::CheckAlone() {
  const absl::Time now = MonotonicNow();
  size_t num_near = 0;
  for (const Copy& copy : copies_) num_near += now - copy.heard < 2 * kBeat;
  if (num_near >= MajorityOf(copies_.size())) with_majority_ = now;
  if (told_ || options_.on_deposed == nullptr) return;
  if (leader_.deposed()) {
    told_ = true;
    options_.on_deposed("another agent has the coordinator now");
  } else if (now - with_majority_ > options_.alone_limit) {
    told_ = true;
    options_.on_deposed(absl::StrCat(
        "a majority of the agents that keep the coordinator's log has not "
        "been reached for ",
        absl::FormatDuration(options_.alone_limit), ": ", Errors()));
  }
}

std::string LogCopies::Errors() const {
  std::vector<std::string> errors;
  for (const Copy& copy : copies_) {
    if (!copy.error.empty()) errors.push_back(copy.error);
  }
  return absl::StrJoin(errors, "; ");
}

absl::Status LogCopies::Wait(std::unique_lock<std::mutex>* lock,
                             uint64_t round) {
  changed_.notify_all();
  changed_.wait_for(*lock, absl::ToChronoMilliseconds(options_.alone_limit),
                    [&] { return leader_.deposed() || HasMajority(round); });
  if (leader_.deposed()) {
    return absl::AbortedError("another agent has the coordinator now");
  }
  if (HasMajority(round)) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      "no majority of the agents that keep the coordinator's log has answered "
      "within ",
      absl::FormatDuration(options_.alone_limit), ": ", Errors()));
}

absl::Status LogCopies::Append(const std::string& record) {
  std::unique_lock<std::mutex> lock(mutex_);
  leader_.Append(record);
  return Wait(&lock, round_);
}

absl::Status LogCopies::Confirm() {
  std::unique_lock<std::mutex> lock(mutex_);
  return Wait(&lock, ++round_);
}

}  // namespace millrace
