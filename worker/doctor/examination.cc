#include "worker/doctor/examination.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace millrace {
namespace {

using Json = nlohmann::json;

// Disks of a network may need long to say that they are away.
constexpr absl::Duration kLookLimit = absl::Seconds(60);
constexpr absl::Duration kReachLimit = absl::Seconds(30);
// Three seconds for the kernel and fifteen for the process, 32 at a time.
constexpr absl::Duration kReachLimitPerAddress = absl::Milliseconds(600);
// A way gets five seconds (pair_probe.h).
constexpr absl::Duration kMeasureLimit = absl::Seconds(10);
constexpr absl::Duration kMeasureLimitPerRail = absl::Seconds(6);
// A connection that was lost is made again at once, unless its agent died.
constexpr absl::Duration kGoneLimit = absl::Seconds(5);

}  // namespace

std::vector<const ReachedAddress*> Examination::RailsToMeasure(
    int32_t from, int32_t to) const {
  std::vector<const ReachedAddress*> rails;
  const auto ways = ways_.find({from, to});
  if (ways == ways_.end()) return rails;
  std::set<std::pair<std::string, std::string>> known;
  for (const size_t i : ways->second) {
    const ReachedAddress& way = result_.reached[i];
    if (known.insert({way.own_interface, way.interface}).second) {
      rails.push_back(&way);
    }
  }
  return rails;
}

Examination::Examination(ExaminationOptions options, absl::Time now)
    : options_(std::move(options)), deadline_(now + options_.join_timeout) {
  result_.needs = options_.needs;
}

absl::StatusOr<int32_t> Examination::OnHello(int32_t agent_idx,
                                             uint64_t instance,
                                             const std::string& host,
                                             absl::Time now) {
  if (agent_idx < 0) {
    for (const auto& [known_idx, agent] : agents_) {
      if (agent.instance == instance) agent_idx = known_idx;
    }
    // An agent that went may have been started again.
    const auto is_free = [&](int32_t idx) {
      const auto known = agents_.find(idx);
      return known == agents_.end() ||
             (step_ == Step::kJoining && known->second.gone_since.has_value());
    };
    for (int32_t i = 1; i < options_.num_agents && agent_idx < 0; ++i) {
      if (is_free(i)) agent_idx = i;
    }
  }
  if (agent_idx < 0 || agent_idx >= options_.num_agents ||
      (step_ != Step::kJoining && !agents_.contains(agent_idx))) {
    return absl::AlreadyExistsError(
        absl::StrCat("the examination of ", options_.num_agents,
                     " agents goes on without this one, on ", host,
                     "; start millrace doctor on all hosts again"));
  }
  agents_[agent_idx] = {.instance = instance, .host = host};
  const auto open = pending_.find(agent_idx);
  if (open != pending_.end()) outgoing_.push_back(open->second);
  OnTick(now);
  return agent_idx;
}

void Examination::OnGone(int32_t agent_idx, absl::Time now) {
  const auto found = agents_.find(agent_idx);
  if (found != agents_.end()) found->second.gone_since = now;
}

void Examination::OnAnswer(int32_t agent_idx, int32_t number,
                           const std::string& text, absl::Time now) {
  const auto open = pending_.find(agent_idx);
  if (open == pending_.end() || open->second.number != number) return;
  pending_.erase(open);
  const absl::StatusOr<Json> json = ParseJson(text);
  if (json.ok() && json->is_object()) {
    TakeAnswer(agent_idx, *json);
  } else {
    LeaveOut(agent_idx, "its answer is not JSON; run one build everywhere");
  }
  OnTick(now);
}

void Examination::TakeAnswer(int32_t agent_idx, const Json& json) {
  absl::Status status;
  const auto list = [&](const char* key) {
    return json.contains(key) ? json[key] : Json::array();
  };
  if (step_ == Step::kLooking) {
    absl::StatusOr<HostFacts> facts = HostFactsFromJson(json);
    status = facts.status();
    if (facts.ok()) {
      facts->agent_idx = agent_idx;
      result_.hosts.push_back(*std::move(facts));
    }
  } else if (step_ == Step::kReaching) {
    status = TakeReached(agent_idx, list("reached"));
  } else if (step_ == Step::kMeasuring) {
    status = TakeRails(agent_idx, list("rails"));
  }
  if (!status.ok()) LeaveOut(agent_idx, std::string(status.message()));
}

absl::Status Examination::TakeReached(int32_t agent_idx, const Json& list) {
  std::vector<ReachedAddress> ways;
  ASSIGN_OR_RETURN(ways, ReachedFromJson(list));
  for (ReachedAddress& way : ways) {
    way.from = agent_idx;
    if (way.error.empty()) {
      ways_[{agent_idx, way.to}].push_back(result_.reached.size());
    }
    result_.reached.push_back(std::move(way));
  }
  return absl::OkStatus();
}

absl::Status Examination::TakeRails(int32_t agent_idx, const Json& list) {
  std::vector<RailFacts> rails;
  ASSIGN_OR_RETURN(rails, RailsFromJson(list));
  for (RailFacts& rail : rails) {
    rail.from = agent_idx;
    result_.rails.push_back(std::move(rail));
  }
  return absl::OkStatus();
}

void Examination::OnTick(absl::Time now) {
  std::vector<int32_t> gone;
  for (const auto& [agent_idx, agent] : agents_) {
    if (agent.gone_since.has_value() && now - *agent.gone_since > kGoneLimit) {
      gone.push_back(agent_idx);
    }
  }
  for (const int32_t agent_idx : gone) {
    if (step_ == Step::kJoining) {
      agents_.erase(agent_idx);  // It may come again; else it did not come.
    } else {
      LeaveOut(agent_idx,
               "left during the examination; see what its host printed");
    }
  }
  if (step_ == Step::kJoining) {
    const bool complete =
        agents_.size() == static_cast<size_t>(options_.num_agents) &&
        std::none_of(agents_.begin(), agents_.end(), [](const auto& agent) {
          return agent.second.gone_since.has_value();
        });
    if (complete || now >= deadline_) BeginLooking(now);
    return;
  }
  if (step_ == Step::kDone) return;
  if (now >= deadline_) {
    while (!pending_.empty()) {
      const int32_t agent_idx = pending_.begin()->first;
      LeaveOut(agent_idx,
               step_ == Step::kLooking
                   ? absl::StrCat("looked at its host for more than ",
                                  absl::FormatDuration(kLookLimit),
                                  "; a folder of the network or a GPU may hang")
                   : "did not answer in time");
    }
  }
  while (pending_.empty() && step_ != Step::kDone) Advance(now);
}

void Examination::Advance(absl::Time now) {
  if (step_ == Step::kLooking) {
    BeginReaching(now);
  } else {
    step_ = Step::kMeasuring;
    BeginRound(now);
  }
}

void Examination::BeginLooking(absl::Time now) {
  for (int32_t i = 0; i < options_.num_agents; ++i) {
    if (agents_.contains(i)) continue;
    result_.failures.push_back(
        {Severity::kFailure, HostOf(i),
         absl::StrCat("agent ", i, " did not come within ",
                      absl::FormatDuration(options_.join_timeout),
                      "; see what its host printed, and whether it reaches "
                      "agent 0's addresses")});
  }
  step_ = Step::kLooking;
  deadline_ = now + kLookLimit;
  for (const auto& [agent_idx, agent] : agents_) {
    Json order = options_.look;
    order["do"] = "look";
    order["agent"] = agent_idx;
    Ask(agent_idx, std::move(order));
  }
  while (pending_.empty() && step_ != Step::kDone) Advance(now);
}

void Examination::BeginReaching(absl::Time now) {
  std::sort(result_.hosts.begin(), result_.hosts.end(),
            [](const HostFacts& a, const HostFacts& b) {
              return a.agent_idx < b.agent_idx;
            });
  Json peers = Json::array();
  size_t num_addresses = 0;
  for (const size_t i : FirstAgents(result_.hosts)) {
    const HostFacts& host = result_.hosts[i];
    representatives_.push_back(host.agent_idx);
    const Json json = ToJson(host);
    num_addresses += host.addresses.size();
    peers.push_back({{"agent", host.agent_idx},
                     {"port", host.port},
                     {"addresses", json["addresses"]}});
  }
  rounds_ = TournamentRounds(static_cast<int32_t>(representatives_.size()));
  step_ = Step::kReaching;
  if (representatives_.size() < 2) return;
  progress_ = absl::StrCat("trying all addresses of ", representatives_.size(),
                           " hosts from each other");
  deadline_ = now + kReachLimit +
              kReachLimitPerAddress * static_cast<double>(num_addresses);
  for (const int32_t agent_idx : representatives_) {
    if (agents_.contains(agent_idx)) {
      Ask(agent_idx, {{"do", "reach"}, {"peers", peers}});
    }
  }
}

void Examination::BeginRound(absl::Time now) {
  if (next_round_ == rounds_.size()) {
    step_ = Step::kDone;
    return;
  }
  if (next_round_ == 0) {
    const size_t num_pairs =
        representatives_.size() * (representatives_.size() - 1) / 2;
    progress_ = absl::StrCat("measuring ", num_pairs,
                             num_pairs == 1 ? " pair" : " pairs", " of hosts");
  }
  deadline_ = now + kMeasureLimit;
  for (const HostPair& pair : rounds_[next_round_++]) {
    // Where only one end may connect, that end measures both directions.
    if (!AskToMeasure(pair, true, now)) AskToMeasure(pair, false, now);
  }
}

bool Examination::AskToMeasure(const HostPair& pair, bool from_first,
                               absl::Time now) {
  const int32_t from = representatives_[from_first ? pair.first : pair.second];
  const int32_t to = representatives_[from_first ? pair.second : pair.first];
  if (!agents_.contains(from) || !agents_.contains(to)) return false;
  const std::vector<const ReachedAddress*> ways = RailsToMeasure(from, to);
  if (ways.empty()) return false;
  Json rails = Json::array();
  for (const ReachedAddress* way : ways) {
    rails.push_back({{"own_interface", way->own_interface},
                     {"interface", way->interface},
                     {"address", way->address}});
  }
  const auto other =
      std::find_if(result_.hosts.begin(), result_.hosts.end(),
                   [&](const HostFacts& host) { return host.agent_idx == to; });
  // The pairs of a round measure at the same time.
  deadline_ = std::max(
      deadline_, now + kMeasureLimit +
                     kMeasureLimitPerRail * static_cast<double>(ways.size()));
  Ask(from, {{"do", "measure"},
             {"agent", to},
             {"port", other->port},
             {"rails", std::move(rails)}});
  return true;
}

void Examination::Ask(int32_t agent_idx, Json order) {
  const ExamineOrder asked = {.agent_idx = agent_idx,
                              .number = ++last_number_,
                              .json = JsonText(order)};
  pending_[agent_idx] = asked;
  outgoing_.push_back(asked);
}

void Examination::LeaveOut(int32_t agent_idx, const std::string& reason) {
  result_.failures.push_back({Severity::kFailure, HostOf(agent_idx),
                              absl::StrCat("agent ", agent_idx, " ", reason)});
  agents_.erase(agent_idx);
  pending_.erase(agent_idx);
}

std::string Examination::HostOf(int32_t agent_idx) const {
  const auto known = agents_.find(agent_idx);
  if (known != agents_.end()) return known->second.host;
  const auto idx = static_cast<size_t>(agent_idx);
  return idx < options_.hosts.size() ? options_.hosts[idx]
                                     : absl::StrCat("agent ", agent_idx);
}

std::vector<ExamineOrder> Examination::TakeOrders() {
  return std::exchange(outgoing_, {});
}

std::string Examination::TakeProgress() { return std::exchange(progress_, ""); }

}  // namespace millrace
