#include "coordinator/succession/log_leader.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace millrace {

Candidacy::Candidacy(std::vector<uint64_t> keepers, int64_t term,
                     int64_t ended_term, bool only_asks)
    : keepers_(std::move(keepers)),
      term_(term),
      ended_term_(ended_term),
      only_asks_(only_asks),
      latest_term_(term),
      promises_(keepers_.size()) {}

protocol::KeepRequest Candidacy::RequestFor(size_t keeper_idx) const {
  protocol::KeepRequest request;
  request.set_keeper(keepers_[keeper_idx]);
  request.set_term(term_);
  request.set_asks_for_promise(true);
  request.set_ended_term(ended_term_);
  request.set_only_asks(only_asks_);
  return request;
}

void Candidacy::OnAnswer(size_t keeper_idx,
                         const protocol::KeepAnswer& answer) {
  latest_term_ = std::max(latest_term_, answer.term());
  if (answer.accepted() && (only_asks_ || answer.term() == term_)) {
    promises_[keeper_idx] = answer;
  }
}

std::optional<std::vector<std::string>> Candidacy::Won() const {
  size_t num_promises = 0;
  const protocol::KeepAnswer* newest = nullptr;
  for (const auto& promise : promises_) {
    if (!promise.has_value()) continue;
    ++num_promises;
    // Logs of one term are beginnings of each other: one process wrote them.
    if (newest == nullptr ||
        std::pair(promise->log_term(), promise->num_records()) >
            std::pair(newest->log_term(), newest->num_records())) {
      newest = &*promise;
    }
  }
  if (num_promises < MajorityOf(keepers_.size())) return std::nullopt;
  return std::vector<std::string>(newest->records().begin(),
                                  newest->records().end());
}

LogLeader::LogLeader(std::vector<uint64_t> keepers, int64_t term,
                     std::vector<std::string> records)
    : keepers_(std::move(keepers)),
      term_(term),
      records_(std::move(records)),
      stored_(keepers_.size(), 0) {}

protocol::KeepRequest LogLeader::RequestFor(size_t keeper_idx) const {
  protocol::KeepRequest request;
  request.set_keeper(keepers_[keeper_idx]);
  request.set_term(term_);
  request.set_num_before(static_cast<int64_t>(stored_[keeper_idx]));
  for (size_t i = stored_[keeper_idx]; i < records_.size(); ++i) {
    request.add_records(records_[i]);
  }
  return request;
}

void LogLeader::OnAnswer(size_t keeper_idx,
                         const protocol::KeepRequest& request,
                         const protocol::KeepAnswer& answer) {
  if (answer.term() > term_) deposed_ = true;
  if (!answer.accepted() || answer.term() != term_) return;
  stored_[keeper_idx] = std::max(
      stored_[keeper_idx], static_cast<size_t>(request.num_before()) +
                               static_cast<size_t>(request.records_size()));
}

size_t LogLeader::num_counting() const {
  std::vector<size_t> stored = stored_;
  const auto majority = stored.begin() + (MajorityOf(stored.size()) - 1);
  std::nth_element(stored.begin(), majority, stored.end(),
                   std::greater<size_t>());
  return *majority;
}

}  // namespace millrace
