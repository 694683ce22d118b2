// The coordinator's side of its log's copies: what each keeper has, what it is
// to be sent, and how much of the log counts. And how a coordinator is chosen.
// Pure, as log_keeper.h is.

#ifndef MILLRACE_COORDINATOR_SUCCESSION_LOG_LEADER_H_
#define MILLRACE_COORDINATOR_SUCCESSION_LOG_LEADER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/files/files.pb.h"

namespace millrace {

// More than half.
inline size_t MajorityOf(size_t num_keepers) { return num_keepers / 2 + 1; }

// A keeper that has heard of no coordinator for so long, and has not stood for
// the place either, asks to be the next. They differ, so that mostly one asks.
inline absl::Duration PatienceOf(size_t keeper_idx) {
  return absl::Milliseconds(2000 + 400 * static_cast<int64_t>(keeper_idx));
}

// Asks for the promises of all keepers, for one term; or, with `only_asks`, who
// would give one.
class Candidacy {
 public:
  // `keepers`: their ids. `ended_term` as in KeepRequest.
  Candidacy(std::vector<uint64_t> keepers, int64_t term, int64_t ended_term,
            bool only_asks);

  protocol::KeepRequest RequestFor(size_t keeper_idx) const;
  // Each keeper's answer counts once.
  void OnAnswer(size_t keeper_idx, const protocol::KeepAnswer& answer);

  // With a majority's promises: the log from which the new coordinator goes on.
  // It has every record that counts. Nothing before. If the candidate only
  // asks, an empty log once a majority would promise.
  std::optional<std::vector<std::string>> Won() const;
  int64_t term() const { return term_; }
  // The latest term that a keeper told of.
  int64_t latest_term() const { return latest_term_; }

 private:
  const std::vector<uint64_t> keepers_;
  const int64_t term_;
  const int64_t ended_term_;
  const bool only_asks_;
  int64_t latest_term_;
  std::vector<std::optional<protocol::KeepAnswer>> promises_;
};

// The log of one term. Nothing in it counts, not even what it began with,
// before a majority has it of this term.
class LogLeader {
 public:
  LogLeader(std::vector<uint64_t> keepers, int64_t term,
            std::vector<std::string> records);

  void Append(std::string record) { records_.push_back(std::move(record)); }
  size_t num_records() const { return records_.size(); }

  // All that the keeper lacks, as far as is known; perhaps nothing.
  protocol::KeepRequest RequestFor(size_t keeper_idx) const;
  void OnAnswer(size_t keeper_idx, const protocol::KeepRequest& request,
                const protocol::KeepAnswer& answer);

  // So many of the first records are with a majority.
  size_t num_counting() const;
  // A keeper knows of a later term, so nothing more will count.
  bool deposed() const { return deposed_; }

 private:
  const std::vector<uint64_t> keepers_;
  const int64_t term_;
  std::vector<std::string> records_;
  std::vector<size_t> stored_;  // Of this term, by keeper.
  bool deposed_ = false;
};

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_SUCCESSION_LOG_LEADER_H_
