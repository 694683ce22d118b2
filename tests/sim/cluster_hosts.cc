// Hosts that end, are cut off and come back; see cluster.h.

#include <algorithm>
#include <utility>
#include <vector>

#include "coordinator/spare_hosts.h"
#include "tests/sim/cluster.h"

namespace millrace {

std::vector<WorkerIdx> Cluster::MembersToPlan() const {
  std::vector<WorkerIdx> members = coordinator_->Workers();
  const auto all = static_cast<size_t>(NumRanksOfAll());
  if (members.size() >= all && log_.members.size() == all) {
    const auto places =
        TakePlaces(log_.members, members, options_.devices_per_agent);
    if (places.has_value()) return *places;
  }
  members.resize(std::min(members.size(), all));
  members.resize(members.size() - members.size() % options_.rank_multiple);
  return members;
}

double Cluster::StepSeconds(Generation generation) const {
  const auto size = generation_sizes_.find(ToInt(generation));
  if (size == generation_sizes_.end() || size->second == 0) {
    return options_.step_s;
  }
  const int32_t all = NumRanksOfAll();
  if (size->second == all) return options_.step_s;
  return options_.step_s * options_.fewer_ranks_factor * all / size->second;
}

void Cluster::BeginStep(Generation generation) {
  const double step_s = StepSeconds(generation);
  step_end_ = now_ + absl::Seconds(step_s);
  At(step_s, [this, generation] { RunStep(generation); });
}

double Cluster::RestOfStep(const SimulatedWorker& worker) const {
  const bool is_stepping = worker.phase == WorkerPhase::kRunning &&
                           worker.given == stepping_ && !worker.paused &&
                           !worker.done;
  if (options_.end_s < 0 || !is_stepping) return 0;
  return std::max(0.0, absl::ToDoubleSeconds(step_end_ - now_)) +
         options_.end_s;
}

void Cluster::Do(const WeighGrowth& action) {
  At(0.1, [this, action, life = coordinator_life_] {
    if (life == coordinator_life_) {
      const bool grows =
          static_cast<int32_t>(log_.members.size()) != NumRanksOfAll();
      Deliver(GrowthWeighed{action.generation, grows});
    }
  });
}

int32_t Cluster::OtherHost() {
  const auto next = static_cast<int32_t>(random_() % (options_.num_agents - 1));
  return (own_agent_ + 1 + next) % options_.num_agents;
}

void Cluster::LoseCoordinatorHost() {
  if (options_.num_agents < 2 || !coordinator_.has_value() ||
      log_.members.empty()) {
    return;
  }
  coordinator_.reset();
  committing_.clear();
  ++coordinator_life_;
  if (Random(0, 1) < 0.5) {
    EndHost(own_agent_);
  } else {
    hosts_[own_agent_].cut = true;
    ++num_absences_;
  }
  ReturnHost(own_agent_);
  At(Random(2, 4), [this] { TakeOver(); });
}

void Cluster::TakeOver() {
  const int32_t agent_idx = OtherHost();
  if (!IsReachable(agent_idx)) {
    At(1, [this] { TakeOver(); });
    return;
  }
  ++num_takeovers_;
  taken_over_from_ = std::exchange(own_agent_, agent_idx);
  StartCoordinator();
}

void Cluster::LoseRandomHost() {
  if (options_.num_agents < 2) return;
  const int32_t agent_idx = OtherHost();
  if (!hosts_[agent_idx].alive) return;
  EndHost(agent_idx);
  Post(AgentDisconnected{agent_idx});
  ReturnHost(agent_idx);
}

void Cluster::LosePairOfHosts() {
  // The newest generation's ranks, whose copies are in memory.
  const std::vector<WorkerIdx>& ranks =
      generation_members_[ToInt(log_.generation)];
  const auto partners = ReplicaPartners(HostsOf(ranks), 1);
  std::vector<std::pair<int32_t, int32_t>> pairs;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (partners[rank].empty()) continue;
    const int32_t host = HostOf(ranks[rank]);
    const int32_t other = HostOf(ranks[ToInt(partners[rank][0])]);
    if (host != other && host != own_agent_ && other != own_agent_ &&
        hosts_[host].alive && hosts_[other].alive) {
      pairs.emplace_back(host, other);
    }
  }
  if (pairs.empty()) return;
  // A checkpoint that is as new may be on its way.
  num_pair_losses_ +=
      whole_.step > std::max<int64_t>(log_.committed_step, 0) &&
      std::none_of(parts_.begin(), parts_.end(), [this](const auto& part) {
        return part.first.second >= whole_.step;
      });
  const auto [host, other] = pairs[random_() % pairs.size()];
  for (const int32_t agent_idx : {host, other}) EndHost(agent_idx);
  for (const int32_t agent_idx : {host, other}) {
    Post(AgentDisconnected{agent_idx});
    ReturnHost(agent_idx);
  }
}

void Cluster::EndHost(int32_t agent_idx) {
  hosts_[agent_idx] = {.alive = false};
  ++num_absences_;
  for (int32_t i = 0; i < options_.devices_per_agent; ++i) {
    memory_.erase(WorkerIdx{agent_idx * options_.devices_per_agent + i});
  }
  for (SimulatedWorker& worker : workers_) {
    if (worker.agent_idx == agent_idx) worker.alive = false;
  }
}

void Cluster::CutRandomHost() {
  if (options_.num_agents < 2) return;
  const int32_t agent_idx = OtherHost();
  if (!IsReachable(agent_idx)) return;
  hosts_[agent_idx].cut = true;
  ++num_absences_;
  ReturnHost(agent_idx);
}

void Cluster::ReturnHost(int32_t agent_idx) {
  if (Random(0, 1) > options_.return_probability) return;
  At(Random(0.1, options_.most_absent_s), [this, agent_idx] {
    const bool was_cut = hosts_[agent_idx].alive;
    hosts_[agent_idx] = {};
    // A process on a host that ended has another, and knows nothing.
    if (!was_cut) {
      std::erase_if(reported_deaths_, [&](const auto& death) {
        return death.first == agent_idx;
      });
    }
    // In whatever order they reconnect.
    At(Random(0, 0.1), [this, agent_idx] { JoinAgent(agent_idx); });
    for (size_t i = 0; i < workers_.size(); ++i) {
      if (workers_[i].agent_idx != agent_idx) continue;
      At(Random(0, 0.1), [this, i] { JoinWorker(i); });
    }
  });
}

}  // namespace millrace
