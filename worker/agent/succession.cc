#include "worker/agent/succession.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "coordinator/files/remote_files.h"
#include "coordinator/succession/log_leader.h"

namespace millrace {
namespace {

constexpr auto kPause = std::chrono::milliseconds(100);
// For the answers of one request for promises.
constexpr absl::Duration kAnswerLimit = absl::Seconds(1);

// The keepers' answers to one candidate, asked all at once.
struct Ballot {
  explicit Ballot(Candidacy of) : candidacy(std::move(of)) {}
  std::mutex mutex;
  std::condition_variable changed;
  Candidacy candidacy;
  size_t num_ended = 0;
};

}  // namespace

Succession::Succession(uint64_t id, std::string secret, FileServer* files)
    : secret_(std::move(secret)),
      files_(files),
      event_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      keeper_(id),
      stood_(MonotonicNow()) {
  CHECK(event_fd_ >= 0);
  files_->KeepLog(
      [this](const protocol::KeepRequest& request) { return Answer(request); });
  thread_ = std::thread([this] { Run(); });
}

Succession::~Succession() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ending_ = true;
    changed_.notify_all();
  }
  thread_.join();
  close(event_fd_);
}

protocol::KeepAnswer Succession::Answer(const protocol::KeepRequest& request) {
  protocol::KeepAnswer answer;
  int64_t term = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    answer = keeper_.Answer(request, MonotonicNow());
    term = keeper_.term();
    if (answer.accepted() && !request.asks_for_promise()) {
      leader_ = request.agent();
      if (keepers_term_ != keeper_.log_term()) {
        keepers_term_ = keeper_.log_term();
        absl::StatusOr<std::vector<Keeper>> keepers =
            KeepersIn(keeper_.records());
        if (keepers.ok()) keepers_ = *std::move(keepers);
      }
    }
  }
  // Before anybody learns of the promise.
  files_->RefuseTermsBelow(term);
  return answer;
}

std::optional<Succession::Won> Succession::TakeWon() {
  std::lock_guard<std::mutex> lock(mutex_);
  uint64_t count = 0;  // Reading resets the event to unreadable.
  const ssize_t bytes_read = read(event_fd_, &count, sizeof(count));
  static_cast<void>(bytes_read);
  return std::exchange(won_, std::nullopt);
}

void Succession::Lead() {
  std::lock_guard<std::mutex> lock(mutex_);
  leads_ = true;
}

void Succession::StandAfter(int64_t ended_term) {
  std::lock_guard<std::mutex> lock(mutex_);
  leads_ = false;
  ended_term_ = ended_term;
  stands_at_once_ = true;
  changed_.notify_all();
}

void Succession::Follow() {
  std::lock_guard<std::mutex> lock(mutex_);
  leads_ = false;
  stood_ = MonotonicNow();
}

bool Succession::has_log() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return keeper_.log_term() > 0;
}

int64_t Succession::term() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return keeper_.term();
}

std::optional<size_t> Succession::OwnIndex(
    const std::vector<Keeper>& keepers) const {
  for (size_t i = 0; i < keepers.size(); ++i) {
    if (keepers[i].id == keeper_.id()) return i;
  }
  return std::nullopt;
}

void Succession::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!ending_) {
    changed_.wait_for(lock, kPause,
                      [this] { return ending_ || stands_at_once_; });
    const std::optional<size_t> own = OwnIndex(keepers_);
    if (ending_ || !own.has_value()) continue;
    const absl::Duration quiet =
        MonotonicNow() - std::max(keeper_.last_news(), stood_);
    const bool is_patient = leads_ || quiet < PatienceOf(*own);
    if (stands_at_once_ || !is_patient) Stand(&lock);
  }
}

void Succession::Stand(std::unique_lock<std::mutex>* lock) {
  stands_at_once_ = false;
  const std::vector<Keeper> keepers = keepers_;
  const int64_t term = std::max(latest_term_, keeper_.term()) + 1;
  if (!Ask(keepers, term, /*only_asks=*/true, lock).has_value()) return;
  latest_term_ = std::max(latest_term_, term);
  const std::optional<std::vector<std::string>> records =
      Ask(keepers, term, /*only_asks=*/false, lock);
  // A later one may have been promised meanwhile; its coordinator then unseats
  // this one at its first record.
  if (!records.has_value()) return;
  const std::optional<size_t> own = OwnIndex(keepers);
  const bool is_other = leader_ != keepers[*own].agent_idx;
  leads_ = true;
  won_ = {.term = term,
          .records = *records,
          .taken_over_from = is_other ? leader_ : -1};
  const uint64_t one = 1;
  const ssize_t written = write(event_fd_, &one, sizeof(one));
  static_cast<void>(written);
}

std::optional<std::vector<std::string>> Succession::Ask(
    const std::vector<Keeper>& keepers, int64_t term, bool only_asks,
    std::unique_lock<std::mutex>* lock) {
  std::vector<uint64_t> ids;
  for (const Keeper& keeper : keepers) ids.push_back(keeper.id);
  Ballot ballot(Candidacy(ids, term, ended_term_, only_asks));
  lock->unlock();
  std::vector<std::unique_ptr<RemoteFiles>> links;
  std::vector<std::thread> threads;
  for (size_t i = 0; i < keepers.size(); ++i) {
    absl::StatusOr<std::unique_ptr<RemoteFiles>> link =
        RemoteFiles::Create({.host = keepers[i].host,
                             .address = keepers[i].address,
                             .port = keepers[i].port,
                             .secret = secret_,
                             .answer_limit = kAnswerLimit});
    if (!link.ok()) continue;
    links.push_back(*std::move(link));
    threads.emplace_back([&ballot, i, link = links.back().get(),
                          request = ballot.candidacy.RequestFor(i)] {
      const absl::StatusOr<protocol::KeepAnswer> answer = link->Keep(request);
      std::lock_guard<std::mutex> counting(ballot.mutex);
      if (answer.ok()) ballot.candidacy.OnAnswer(i, *answer);
      ++ballot.num_ended;
      ballot.changed.notify_all();
    });
  }
  {
    std::unique_lock<std::mutex> counting(ballot.mutex);
    ballot.changed.wait_for(counting,
                            absl::ToChronoMilliseconds(2 * kAnswerLimit), [&] {
                              return ballot.candidacy.Won().has_value() ||
                                     ballot.num_ended == threads.size();
                            });
  }
  for (const std::unique_ptr<RemoteFiles>& link : links) link->Abort();
  for (std::thread& thread : threads) thread.join();
  lock->lock();
  latest_term_ = std::max(latest_term_, ballot.candidacy.latest_term());
  stood_ = MonotonicNow();
  return ballot.candidacy.Won();
}

}  // namespace millrace
