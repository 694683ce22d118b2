// An agent's copy of the coordinator's log, and its word on who may be the
// coordinator. Pure: time is an argument, and no message is sent here.
//
// The protocol is Paxos with one leader at a time (Lamport, "Paxos Made
// Simple", 2001), whose value is the whole log: a coordinator has a term, and a
// record counts once a majority of the keepers has it from that term's
// coordinator. Who wants to be the next one asks all keepers for a promise for
// a later term. A keeper that gave it takes nothing of earlier terms any more,
// so whoever has a majority's promises knows that no record is added any more
// that is not in one of the logs that came with them.
//
// Before it asks for promises, a candidate asks who would give them, and stops
// there without a majority. So a host that is cut off promises itself nothing,
// and does not come back with a later term that unseats a coordinator at work
// (Ongaro, "Consensus: Bridging Theory and Practice", 2014, section 9.6).
//
// A keeper lives in memory: an agent that ends is no keeper any more, whatever
// is started in its place, so it cannot forget a promise.

#ifndef MILLRACE_COORDINATOR_SUCCESSION_LOG_KEEPER_H_
#define MILLRACE_COORDINATOR_SUCCESSION_LOG_KEEPER_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/files/files.pb.h"

namespace millrace {

class LogKeeper {
 public:
  // While it has heard from a coordinator within this time, a keeper promises
  // nothing to another one: a host that was cut off and is back must not unseat
  // a coordinator that works. Being wrong about it costs time and no record.
  static constexpr absl::Duration kTrust = absl::Milliseconds(1200);

  // `id`: a number that no other process has.
  explicit LogKeeper(uint64_t id) : id_(id) {}

  // A request that is meant for another keeper is not accepted.
  protocol::KeepAnswer Answer(const protocol::KeepRequest& request,
                              absl::Time now);

  uint64_t id() const { return id_; }
  // The latest term that was promised to somebody, or stored from.
  int64_t term() const { return term_; }
  // The coordinator that wrote the log. 0: there is none yet.
  int64_t log_term() const { return log_term_; }
  const std::vector<std::string>& records() const { return records_; }
  // When the coordinator of term() last stored something, or nothing new, or a
  // promise was given: whoever got it needs some time.
  absl::Time last_news() const { return std::max(heard_, promised_); }

 private:
  bool WouldPromise(const protocol::KeepRequest& request, absl::Time now) const;
  bool Promise(const protocol::KeepRequest& request, absl::Time now);
  bool Store(const protocol::KeepRequest& request, absl::Time now);

  const uint64_t id_;
  int64_t term_ = 0;
  int64_t log_term_ = 0;
  std::vector<std::string> records_;
  absl::Time heard_ = absl::InfinitePast();
  absl::Time promised_ = absl::InfinitePast();
};

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_SUCCESSION_LOG_KEEPER_H_
