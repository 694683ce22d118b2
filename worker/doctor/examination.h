// The course of an examination: who has come, what each agent is asked next,
// and how long for. It is pure: events and the time in, orders out.
//
// First all agents come. Then each looks at its host. Then each host tries all
// addresses of all others. Then the pairs that reach each other measure their
// ways, round by round. An agent that does not answer in time is named and left
// out of the rest, so the examination always ends.

#ifndef MILLRACE_WORKER_DOCTOR_EXAMINATION_H_
#define MILLRACE_WORKER_DOCTOR_EXAMINATION_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/json.h"
#include "worker/doctor/findings.h"
#include "worker/doctor/tournament.h"

namespace millrace {

struct ExaminationOptions {
  int32_t num_agents = 1;
  std::vector<std::string> hosts;  // By agent, as far as they are known.
  absl::Duration join_timeout = absl::Minutes(1);
  JobNeeds needs;
  // Told to every agent with "look": the job, the folders.
  nlohmann::json look = nlohmann::json::object();
};

struct ExamineOrder {
  int32_t agent_idx = 0;
  int32_t number = 0;  // Counts up; the answer bears it too.
  std::string json;
};

class Examination {
 public:
  Examination(ExaminationOptions options, absl::Time now);

  // An agent says hello, again after a lost connection. `agent_idx` is -1 where
  // no launcher numbered it; `instance` then tells agents apart. Returns the
  // index, or AlreadyExists if all have come.
  absl::StatusOr<int32_t> OnHello(int32_t agent_idx, uint64_t instance,
                                  const std::string& host, absl::Time now);
  void OnGone(int32_t agent_idx, absl::Time now);
  void OnAnswer(int32_t agent_idx, int32_t number, const std::string& json,
                absl::Time now);
  void OnTick(absl::Time now);

  // The orders that are to be sent now. Each is given out once, and again if
  // its agent says hello again.
  std::vector<ExamineOrder> TakeOrders();
  // A line for people about what goes on; empty if nothing new does.
  std::string TakeProgress();

  bool is_looking() const { return step_ == Step::kLooking; }
  bool is_done() const { return step_ == Step::kDone; }
  const ExaminationResult& result() const { return result_; }

 private:
  enum class Step : uint8_t {
    kJoining,
    kLooking,
    kReaching,
    kMeasuring,
    kDone
  };
  struct Agent {
    uint64_t instance = 0;
    std::string host;
    std::optional<absl::Time> gone_since;
  };

  void Ask(int32_t agent_idx, nlohmann::json order);
  void TakeAnswer(int32_t agent_idx, const nlohmann::json& json);
  absl::Status TakeReached(int32_t agent_idx, const nlohmann::json& list);
  absl::Status TakeRails(int32_t agent_idx, const nlohmann::json& list);
  void LeaveOut(int32_t agent_idx, const std::string& reason);
  void Advance(absl::Time now);
  void BeginLooking(absl::Time now);
  void BeginReaching(absl::Time now);
  void BeginRound(absl::Time now);
  bool AskToMeasure(const HostPair& pair, bool from_first, absl::Time now);
  // The ways between two interfaces, once each, by the first address that leads
  // there.
  std::vector<const ReachedAddress*> RailsToMeasure(int32_t from,
                                                    int32_t to) const;
  std::string HostOf(int32_t agent_idx) const;

  const ExaminationOptions options_;
  Step step_ = Step::kJoining;
  absl::Time deadline_;
  int32_t last_number_ = 0;
  std::map<int32_t, Agent> agents_;          // They came and did not fail.
  std::map<int32_t, ExamineOrder> pending_;  // By agent, not answered.
  std::vector<ExamineOrder> outgoing_;
  std::string progress_;
  std::vector<int32_t> representatives_;  // The first agents of hosts.
  std::vector<std::vector<HostPair>> rounds_;
  size_t next_round_ = 0;
  // Where somebody was reached, in result_.reached, by who tried and whom.
  std::map<std::pair<int32_t, int32_t>, std::vector<size_t>> ways_;
  ExaminationResult result_;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_DOCTOR_EXAMINATION_H_
