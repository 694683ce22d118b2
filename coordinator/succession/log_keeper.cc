#include "coordinator/succession/log_keeper.h"

namespace millrace {

protocol::KeepAnswer LogKeeper::Answer(const protocol::KeepRequest& request,
                                       absl::Time now) {
  protocol::KeepAnswer answer;
  if (request.keeper() == id_) {
    answer.set_accepted(!request.asks_for_promise() ? Store(request, now)
                        : request.only_asks()       ? WouldPromise(request, now)
                                                    : Promise(request, now));
    answer.set_term(term_);
    answer.set_log_term(log_term_);
    answer.set_num_records(static_cast<int64_t>(records_.size()));
    if (answer.accepted() && request.asks_for_promise() &&
        !request.only_asks()) {
      for (const std::string& record : records_) answer.add_records(record);
    }
  }
  return answer;
}

bool LogKeeper::WouldPromise(const protocol::KeepRequest& request,
                             absl::Time now) const {
  // Equal: promised already, perhaps to another one.
  if (request.term() <= term_) return false;
  const bool has_ended =
      request.ended_term() == term_ && request.ended_term() > 0;
  return has_ended || now - heard_ >= kTrust;
}

bool LogKeeper::Promise(const protocol::KeepRequest& request, absl::Time now) {
  if (!WouldPromise(request, now)) return false;
  term_ = request.term();
  promised_ = now;
  return true;
}

bool LogKeeper::Store(const protocol::KeepRequest& request, absl::Time now) {
  if (request.term() < term_) return false;
  term_ = request.term();
  heard_ = now;
  const int64_t num_before = request.num_before();
  if (log_term_ != term_) {
    // The log of an earlier coordinator is replaced whole or not at all.
    if (num_before != 0) return false;
    log_term_ = term_;
    records_.clear();
  }
  if (num_before > static_cast<int64_t>(records_.size())) return false;
  // A request may come twice, or after a later one: what it brings is there.
  for (int64_t i = static_cast<int64_t>(records_.size()) - num_before;
       i < request.records_size(); ++i) {
    records_.push_back(request.records(static_cast<int>(i)));
  }
  return true;
}

}  // namespace millrace
