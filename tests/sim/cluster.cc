#include "tests/sim/cluster.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace millrace {
namespace {

constexpr double kFaultWindowS = 12;  // Kills fall into the first seconds.
constexpr double kPollS = 0.1;
constexpr double kTrainingS = 1.5;  // There is a plan by then.

absl::Time Start() { return absl::UnixEpoch(); }

}  // namespace

Cluster::Cluster(const ClusterOptions& options)
    : options_(options),
      random_(options.seed),
      now_(Start()),
      hosts_(options.num_agents) {
  has_profile_ = !options.needs_profile;
  At(0, [this] { StartCoordinator(); });
  At(options_.heartbeat_s, [this] { Heartbeats(); });
  for (int32_t i = 0; i < options.num_worker_kills; ++i) {
    At(Random(0.1, kFaultWindowS), [this] { KillRandomWorker(); });
  }
  if (options.num_flaps > 0) At(Random(1, 3), [this] { BeginFlapping(); });
  for (int32_t i = 0; i < options.num_worker_freezes; ++i) {
    At(Random(0.1, kFaultWindowS), [this] { FreezeRandomWorker(); });
  }
  for (int32_t i = 0; i < options.num_worker_hangs; ++i) {
    At(Random(0.1, kFaultWindowS), [this] { MakeRandomWorkerHang(); });
  }
  for (int32_t i = 0; i < options.num_rank_hangs; ++i) {
    At(Random(kTrainingS, kFaultWindowS), [this] { HangRandomRank(); });
  }
  for (int32_t i = 0; i < options.num_wrong_replicas; ++i) {
    At(Random(kTrainingS, kFaultWindowS), [this] { FindWrongReplica(); });
  }
  for (int32_t i = 0; i < options.num_roll_backs; ++i) {
    At(Random(kTrainingS, kFaultWindowS), [this] { RollBackSteps(); });
  }
  for (int32_t i = 0; i < options.num_flips_and_kills; ++i) {
    At(Random(kTrainingS, kFaultWindowS), [this] { FlipAndKill(); });
  }
  for (int32_t i = 0; i < options.num_coordinator_kills; ++i) {
    At(Random(0.1, kFaultWindowS), [this] { KillCoordinator(); });
  }
  for (int32_t i = 0; i < options.num_takeovers; ++i) {
    At(Random(kTrainingS, kFaultWindowS), [this] { LoseCoordinatorHost(); });
  }
  for (int32_t i = 0; i < options.num_host_losses; ++i) {
    At(Random(kTrainingS, kFaultWindowS), [this] { LoseRandomHost(); });
  }
  for (int32_t i = 0; i < options.num_host_cuts; ++i) {
    At(Random(kTrainingS, kFaultWindowS), [this] { CutRandomHost(); });
  }
  for (int32_t i = 0; i < options.num_pair_losses; ++i) {
    At(Random(kTrainingS, kFaultWindowS), [this] { LosePairOfHosts(); });
  }
  Repeat(options.worker_failure_s, [this] { KillLiveWorker(); });
  Repeat(options.host_failure_s, [this] { LoseRandomHost(); });
  if (options.stop_after_s >= 0) {
    const StopRequested stop = {.now = false, .requeue = options.requeue};
    At(options.stop_after_s, [this, stop] { Post(stop); });
  }
}

void Cluster::Run() {
  while (!queue_.empty() && !end_.has_value() && violations_.empty()) {
    const auto [time, id] = queue_.top();
    queue_.pop();
    now_ = time;
    if (now_ - Start() > absl::Seconds(options_.time_limit_s)) {
      Violate("the job hangs");
      return;
    }
    const std::function<void()> work = std::move(work_[id]);
    work_.erase(id);
    work();
  }
}

void Cluster::At(double delay_s, std::function<void()> work) {
  queue_.push({now_ + absl::Seconds(delay_s), ++last_work_});
  work_[last_work_] = std::move(work);
}

double Cluster::Random(double low, double high) {
  return std::uniform_real_distribution<double>(low, high)(random_);
}

double Cluster::seconds() const {
  return absl::ToDoubleSeconds(now_ - Start());
}

void Cluster::Violate(const std::string& what) {
  violations_.push_back(
      absl::StrCat("after ", absl::FormatDuration(now_ - Start()),
                   " in generation ", ToInt(log_.generation), ": ", what));
}

// Coordinator. ----------------------------------------------------------------

void Cluster::StartCoordinator() {
  coordinator_.emplace(
      JobStateOptions{.num_agents = options_.num_agents,
                      .heartbeat_timeout = absl::Seconds(2),
                      .clear_timeout = absl::Seconds(3),
                      .join_timeout = absl::Seconds(20),
                      .host_timeout = absl::Seconds(2),
                      .return_timeout = absl::Seconds(1),
                      .max_restarts = options_.max_restarts,
                      .own_agent = own_agent_,
                      .leave_out_time = absl::Seconds(options_.leave_out_s),
                      .keeps_spare_hosts = options_.spare_hosts > 0,
                      .taken_over_from = taken_over_from_},
      log_, now_);
  for (int32_t i = 0; i < options_.num_agents; ++i) {
    At(Random(0, 0.3), [this, i] { JoinAgent(i); });
  }
  for (size_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i].alive) At(Random(0, 0.3), [this, i] { JoinWorker(i); });
  }
}

void Cluster::KillCoordinator() {
  if (!coordinator_.has_value()) return;
  coordinator_.reset();
  committing_.clear();
  ++coordinator_life_;
  At(Random(0.05, 1), [this] { StartCoordinator(); });
}

void Cluster::Post(const JobEvent& event) {
  const auto deliver = [this, event, life = coordinator_life_] {
    if (life == coordinator_life_) Deliver(event);
  };
  At(Random(0.001, 0.05), deliver);
  // Only messages may come twice. The end of a connection is no message.
  if (!std::holds_alternative<AgentDisconnected>(event) &&
      Random(0, 1) < options_.duplicate_probability) {
    At(Random(0.05, 3), deliver);
  }
}

void Cluster::Deliver(const JobEvent& event) {
  if (!coordinator_.has_value()) return;
  const std::vector<JobAction> actions = coordinator_->Handle(event, now_);
  // A coordinator may die between any two actions.
  for (const JobAction& action : actions) {
    std::visit([this](const auto& specific) { Do(specific); }, action);
  }
}

void Cluster::Do(const MakePlan&) {
  const std::vector<WorkerIdx> members = MembersToPlan();
  const int64_t plan = ++num_plans_;
  if (!has_profile_) {
    At(0.01, [this, plan] {
      if (plan == num_plans_) Deliver(PlanNeedsProfile{});
    });
    return;
  }
  const double seconds = planned_sizes_.contains(members.size())
                             ? options_.known_plan_s
                             : options_.plan_s;
  At(seconds, [this, members, life = coordinator_life_, plan] {
    if (life != coordinator_life_ || plan != num_plans_) return;
    planned_sizes_.insert(members.size());
    if (static_cast<int32_t>(members.size()) < options_.least_ranks) {
      Deliver(PlanRefused{"too few devices"});
      return;
    }
    log_.step_time = absl::Seconds(options_.step_s);
    Deliver(PlanMade{members, log_.step_time});
    // A plan that came too late was not taken.
    if (coordinator_->members() != members) return;
    log_.members = members;
    log_.devices_by_agent = coordinator_->DevicesByAgent();
    log_.left_out = coordinator_->LeftOutDevices();
  });
}

// A search that is stopped ends soon, without a plan.
void Cluster::Do(const AbandonPlan&) {
  At(0.1, [this, life = coordinator_life_, plan = ++num_plans_] {
    if (life == coordinator_life_ && plan == num_plans_) {
      Deliver(PlanRefused{"stopped"});
    }
  });
}

void Cluster::Do(const StartWorkerProcess& action) {
  for (SimulatedWorker& worker : workers_) {
    if (worker.alive && worker.process.worker == action.process.worker) {
      Violate(absl::StrCat("two processes of worker ",
                           ToInt(action.process.worker)));
    }
  }
  if (!IsReachable(action.agent_idx)) return;
  workers_.push_back(
      {.process = action.process, .agent_idx = action.agent_idx});
  const size_t worker_idx = workers_.size() - 1;
  At(Random(options_.most_start_s / 25, options_.most_start_s),
     [this, worker_idx] { JoinWorker(worker_idx); });
}

void Cluster::Do(const KillWorkerProcess& action) {
  if (!IsReachable(action.agent_idx)) return;
  kill_reasons_.push_back(action.reason);
  for (size_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i].process == action.process) KillWorker(i, "killed on order");
  }
}

void Cluster::Do(const RecordGeneration& action) {
  if (action.generation <= log_.generation) Violate("a generation came twice");
  log_.generation = action.generation;
  raised_ = now_;
}

void Cluster::Do(const AbortOlder& action) {
  for (size_t i = 0; i < workers_.size(); ++i) {
    if (!workers_[i].alive) continue;
    At(RestOfStep(workers_[i]) + Random(0.001, 0.1),
       [this, i, action] { Clear(i, action.generation); });
  }
}

void Cluster::Clear(size_t worker_idx, Generation generation) {
  SimulatedWorker& worker = workers_[worker_idx];
  if (!IsResponsive(worker) || !IsReachable(worker.agent_idx) ||
      generation < worker.seen) {
    return;
  }
  // The process exits, to be replaced, when its thread does not end.
  if (worker.given < generation && worker.hung) {
    At(2, [this, worker_idx] { KillWorker(worker_idx, "exited with code 3"); });
    return;
  }
  if (worker.given < generation && worker.hangs_when_told) {
    worker.stuck = true;
    ++num_stuck_;
    return;
  }
  worker.seen = generation;
  if (worker.given < generation) {
    KeepLiveState(worker);
    worker.phase = WorkerPhase::kIdle;
    worker.unacknowledged.clear();
    worker.done = worker.paused = false;
  }
  PostFromWorker(worker_idx, WorkerCleared{worker.process, generation});
}

void Cluster::Do(const BeginGeneration& action) {
  const int64_t generation = ToInt(action.generation);
  if (action.generation != log_.generation) Violate("began an older one");
  const auto num_ranks = static_cast<int32_t>(action.members.size());
  if (!generation_sizes_.emplace(generation, num_ranks).second) {
    Violate("one generation began twice");
  }
  if (action.restore_step != log_.committed_step) {
    Violate("restores something else than the last commit");
  }
  if (!committing_.empty()) Violate("began while a commit was under way");
  CheckLeftOut(action);
  longest_recovery_s_ =
      std::max(longest_recovery_s_, absl::ToDoubleSeconds(now_ - raised_));
  const bool profile = action.purpose == Purpose::kProfile;
  generation_members_[generation] = action.members;
  const int64_t step = profile ? 0 : ChooseStep(action);
  const bool from_memory = step > std::max<int64_t>(action.restore_step, 0);
  num_from_memory_ += from_memory;
  for (size_t i = 0; i < workers_.size(); ++i) {
    At(Random(0.001, 0.05), [this, i, action, profile, step, from_memory] {
      SimulatedWorker& worker = workers_[i];
      const bool is_member =
          std::find(action.members.begin(), action.members.end(),
                    worker.process.worker) != action.members.end();
      if (!is_member || !IsResponsive(worker) ||
          !IsReachable(worker.agent_idx) || action.generation < worker.seen) {
        return;
      }
      worker.seen = worker.given = action.generation;
      worker.phase = WorkerPhase::kStarting;
      worker.failed = worker.done = worker.paused = false;
      worker.vote_to_stop = worker.vote_to_pause = worker.flipped = false;
      worker.steps = step;
      std::erase_if(memory_[worker.process.worker], [&](const auto& entry) {
        return entry.first.set.step > step;
      });
      if (profile) return;
      At(Random(options_.most_restore_s / 6, options_.most_restore_s),
         [this, i, action, from_memory] {
           SimulatedWorker& later = workers_[i];
           if (!IsResponsive(later) || later.seen != action.generation) return;
           later.phase = WorkerPhase::kRunning;
           PostFromWorker(i,
                          WorkerRunning{later.process.worker, action.generation,
                                        later.steps, from_memory});
         });
    });
  }
  if (profile) {
    At(1.0, [this, action] {
      if (Members(action.generation).size() == action.members.size()) {
        has_profile_ = true;
        Deliver(ProfileMade{action.generation});
      } else {
        FailGeneration(action.generation);
      }
    });
  } else {
    At(0.4, [this, action] { RunStep(action.generation); });
  }
}

void Cluster::Do(const CommitStep& action) {
  const std::pair<Generation, int64_t> key = {action.generation, action.step};
  if (!committing_.emplace(key, false).second) {
    Violate(absl::StrCat("step ", action.step, " is being committed already"));
  }
  if (action.step <= log_.committed_step) {
    Violate(absl::StrCat("step ", action.step, " was committed before"));
  }
  At(Random(0, options_.most_commit_s),
     [this, action, key, life = coordinator_life_] {
       // It died, or the commit was given up.
       if (life != coordinator_life_ || !committing_.contains(key)) return;
       committing_[key] = true;
       WriteCommit(action);
     });
}

// From here on the disk may have it, whatever becomes of the coordinator.
void Cluster::WriteCommit(const CommitStep& action) {
  if (wrong_.contains(action.generation)) {
    Violate("committed a state whose replicas differed");
  }
  const auto& written = parts_[{ToInt(action.generation), action.step}];
  if (static_cast<int32_t>(written.size()) !=
      generation_sizes_[ToInt(action.generation)]) {
    Violate("committed a checkpoint with parts missing");
  }
  At(Random(0, options_.most_last_write_s),
     [this, action, life = coordinator_life_] {
       if (life != coordinator_life_) return;
       committing_.erase({action.generation, action.step});
       if (!commits_.emplace(action.step, action.generation).second) {
         Violate(absl::StrCat("step ", action.step, " was committed twice"));
       }
       log_.committed_step = std::max(log_.committed_step, action.step);
       Deliver(StepCommitted{action.generation, action.step});
     });
}

void Cluster::Do(const GiveUpCommits&) {
  for (auto commit = committing_.begin(); commit != committing_.end();) {
    const auto [key, writes] = *commit;
    if (writes) {
      ++commit;
      continue;
    }
    commit = committing_.erase(commit);
    ++num_given_up_;
    At(0, [this, key = key, life = coordinator_life_] {
      if (life != coordinator_life_) return;
      Deliver(CommitFailed{key.first, key.second, "given up"});
    });
  }
}

void Cluster::Do(const TellWorkersToStop&) {
  // Never before a BeginGeneration sent earlier: connections keep the order.
  At(0.06, [this] {
    for (SimulatedWorker& worker : workers_) worker.vote_to_stop = true;
  });
}

void Cluster::Do(const TellWorkersToPause&) {
  At(0.06, [this] {
    for (SimulatedWorker& worker : workers_) worker.vote_to_pause = true;
  });
}

void Cluster::Do(const EndJob& action) { end_ = action; }

// Agents and workers. ---------------------------------------------------------

void Cluster::JoinAgent(int32_t agent_idx) {
  if (!IsReachable(agent_idx)) return;
  AgentJoined joined = {.agent_idx = agent_idx,
                        .num_devices = options_.devices_per_agent,
                        .data_ready = true};
  for (const SimulatedWorker& worker : workers_) {
    if (worker.alive && worker.agent_idx == agent_idx) {
      joined.live_workers.push_back(worker.process);
    }
  }
  Deliver(joined);
  for (const auto& [of_agent, death] : reported_deaths_) {
    if (of_agent == agent_idx) Post(death);
  }
}

void Cluster::JoinWorker(size_t worker_idx) {
  const SimulatedWorker& worker = workers_[worker_idx];
  if (!worker.alive || worker.frozen || !IsReachable(worker.agent_idx)) return;
  Deliver(WorkerJoined{worker.process, worker.given, worker.phase});
  for (const JobEvent& event : worker.unacknowledged) Post(event);
}

void Cluster::Heartbeats() {
  for (int32_t i = 0; i < options_.num_agents; ++i) {
    if (IsReachable(i)) Deliver(AgentHeard{i});
  }
  for (const SimulatedWorker& worker : workers_) {
    if (worker.alive && !worker.frozen && IsReachable(worker.agent_idx)) {
      Deliver(WorkerHeard{worker.process});
    }
  }
  Deliver(Tick{});
  At(options_.heartbeat_s, [this] { Heartbeats(); });
}

void Cluster::PostFromWorker(size_t worker_idx, const JobEvent& event) {
  workers_[worker_idx].unacknowledged.push_back(event);
  if (IsReachable(workers_[worker_idx].agent_idx)) Post(event);
}

void Cluster::KillWorker(size_t worker_idx, const std::string& detail) {
  SimulatedWorker& worker = workers_[worker_idx];
  if (!worker.alive) return;
  worker.alive = false;
  const WorkerDead death = {worker.process, detail};
  reported_deaths_.emplace_back(worker.agent_idx, death);
  if (IsReachable(worker.agent_idx)) Post(death);
}

int32_t Cluster::num_sizes() const {
  std::set<int32_t> sizes;
  for (const auto& [generation, size] : generation_sizes_) sizes.insert(size);
  return static_cast<int32_t>(sizes.size());
}

bool Cluster::IsResponsive(const SimulatedWorker& worker) const {
  return worker.alive && !worker.frozen && !worker.stuck;
}

std::vector<size_t> Cluster::Members(Generation generation) {
  std::vector<size_t> members;
  for (size_t i = 0; i < workers_.size(); ++i) {
    const SimulatedWorker& worker = workers_[i];
    if (IsResponsive(worker) && worker.given == generation &&
        worker.seen == generation) {
      members.push_back(i);
    }
  }
  return members;
}

void Cluster::FailGeneration(Generation generation) {
  for (size_t i : Members(generation)) {
    if (std::exchange(workers_[i].failed, true)) continue;
    PostFromWorker(i, WorkerFailed{workers_[i].process.worker, generation,
                                   absl::UnavailableError("a peer is gone")});
  }
}

// A step is collective: with a member gone nobody takes it.
void Cluster::RunStep(Generation generation) {
  const std::vector<size_t> members = Members(generation);
  const bool complete = static_cast<int32_t>(members.size()) ==
                        generation_sizes_[ToInt(generation)];
  // Nor is a network that is cut, which stops the step as long as it lasts.
  for (size_t i : members) {
    if (!complete || IsReachable(workers_[i].agent_idx)) continue;
    At(StepSeconds(generation), [this, generation] { RunStep(generation); });
    return;
  }
  if (!complete) {
    // A frozen peer is not noticed by the others.
    bool frozen = false;
    for (const SimulatedWorker& worker : workers_) {
      frozen = frozen ||
               (worker.alive && worker.frozen && worker.given == generation);
    }
    if (!frozen) FailGeneration(generation);
    return;
  }
  for (size_t i : members) {
    if (!workers_[i].hung || workers_[i].phase != WorkerPhase::kRunning ||
        workers_[i].done) {
      continue;
    }
    // As the coordinator finds by what ranks tell of their progress.
    At(1, [this, generation, worker = workers_[i].process.worker] {
      if (coordinator_.has_value() && log_.generation == generation) {
        ++num_hung_;
        Deliver(RanksHang{.generation = generation,
                          .culprits = {worker},
                          .reasons = {"at gemm"},
                          .explanation = "no rank has got on"});
      }
      RunStep(generation);
    });
    return;
  }
  const int64_t interval = options_.replica_interval;
  if (interval > 0 && num_sending_ > 0 && sending_ == generation &&
      (workers_[members.front()].steps + 1) % interval == 0) {
    At(options_.step_s / 10, [this, generation] { RunStep(generation); });
    return;  // The copies of the last set are on their way.
  }
  bool stop = false;
  bool paused = false;
  bool may_step = true;
  for (size_t i : members) {
    stop = stop || workers_[i].vote_to_stop;
    paused = paused || workers_[i].paused;
    may_step = may_step && workers_[i].phase == WorkerPhase::kRunning;
    if (workers_[i].steps != workers_[members.front()].steps) {
      Violate("ranks of one generation are at different steps");
    }
  }
  if (!may_step) {
    At(std::min(kPollS, options_.step_s),
       [this, generation] { RunStep(generation); });
    return;
  }
  const int64_t begun = workers_[members.front()].steps;
  // The state of a step is there when the step has been taken.
  if (stepping_ != generation) {
    stepping_ = generation;
    if (interval > 0 && begun > 0 && std::exchange(renews_, false)) {
      TakeReplicas(generation, begun);  // What was restored.
    }
    BeginStep(generation);
    return;
  }
  if (paused && !stop) {
    At(kPollS, [this, generation] { RunStep(generation); });
    return;
  }
  const int64_t step = std::min(begun + (paused ? 0 : 1), options_.num_steps);
  bool pauses = false;
  for (size_t i : members) {
    pauses = pauses || (workers_[i].vote_to_pause && !paused);
  }
  const bool last = stop || step == options_.num_steps;
  const bool saves =
      step % options_.checkpoint_interval == 0 ||
      (last && (options_.checkpoint_at_end || step < options_.num_steps));
  if (saves && FindsFlips(generation, step, members)) return;
  for (size_t i : members) {
    SimulatedWorker& worker = workers_[i];
    if (worker.done) continue;
    worker.steps = step;
    if (saves) {
      parts_[{ToInt(generation), step}].insert(worker.process.worker);
      PostFromWorker(i,
                     PartWritten{worker.process.worker, generation, step, ""});
    }
    if (last) {
      worker.done = true;
      PostFromWorker(i, WorkerDone{worker.process.worker, generation, step,
                                   step < options_.num_steps, saves});
    }
  }
  if (last) return;
  if (pauses) {
    Pause(generation, step);
    At(kPollS, [this, generation] { RunStep(generation); });
    return;
  }
  if (interval > 0 && step % interval == 0) TakeReplicas(generation, step);
  BeginStep(generation);
}

}  // namespace millrace
