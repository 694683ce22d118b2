// Workers that die, freeze and hang, and numbers that are wrong; see cluster.h.

#include <functional>
#include <vector>

#include "tests/sim/cluster.h"

namespace millrace {

void Cluster::Repeat(double mean_s, const std::function<void()>& fail) {
  if (mean_s <= 0) return;
  At(Random(0.5 * mean_s, 1.5 * mean_s), [this, mean_s, fail] {
    // Before there is a plan nothing that was trained is lost.
    if (!log_.members.empty()) {
      ++num_failures_;
      fail();
    }
    Repeat(mean_s, fail);
  });
}

void Cluster::KillRandomWorker() {
  if (workers_.empty()) return;
  KillWorker(random_() % workers_.size(), "killed by signal 9 (Killed)");
}

void Cluster::KillLiveWorker() {
  std::vector<size_t> alive;
  for (size_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i].alive) alive.push_back(i);
  }
  if (alive.empty()) return;
  KillWorker(alive[random_() % alive.size()], "killed by signal 9 (Killed)");
}

void Cluster::FreezeRandomWorker() {
  if (workers_.empty()) return;
  workers_[random_() % workers_.size()].frozen = true;
}

void Cluster::MakeRandomWorkerHang() {
  if (workers_.empty()) return;
  workers_[random_() % workers_.size()].hangs_when_told = true;
}

void Cluster::HangRandomRank() {
  if (workers_.empty()) return;
  workers_[random_() % workers_.size()].hung = true;
}

void Cluster::FindWrongReplica() {
  if (!coordinator_.has_value() || workers_.empty()) return;
  const Generation generation = log_.generation;
  if (coordinator_->phase() == JobState::Phase::kTraining) {
    wrong_.insert(generation);
  }
  Deliver(ReplicasDiffer{
      .generation = generation,
      .step = log_.committed_step + 1,
      .suspects = {workers_[random_() % workers_.size()].process.worker},
      .outvoted = random_() % 2 == 0,
      .explanation = "replicas differ"});
}

void Cluster::RollBackSteps() {
  Deliver(RollBack{log_.generation, "the loss jumped"});
}

bool Cluster::FindsFlips(Generation generation, int64_t step,
                         const std::vector<size_t>& members) {
  std::vector<WorkerIdx> flipped;
  for (const size_t i : members) {
    if (workers_[i].flipped) flipped.push_back(workers_[i].process.worker);
  }
  if (flipped.empty()) return false;
  if (!coordinator_.has_value()) {
    At(options_.step_s, [this, generation] { RunStep(generation); });
    return true;
  }
  wrong_.insert(generation);
  distrusted_ = generation;
  Deliver(ReplicasDiffer{.generation = generation,
                         .step = step,
                         .suspects = flipped,
                         .outvoted = 2 * flipped.size() < members.size(),
                         .explanation = "replicas differ"});
  return true;
}

void Cluster::FlipAndKill() {
  std::vector<size_t> running;
  for (const size_t i : Members(log_.generation)) {
    if (workers_[i].phase == WorkerPhase::kRunning) running.push_back(i);
  }
  if (running.size() < 2) return;
  const size_t flipped = random_() % running.size();
  const size_t killed =
      (flipped + 1 + random_() % (running.size() - 1)) % running.size();
  workers_[running[flipped]].flipped = true;
  At(Random(0, 3 * options_.step_s), [this, killed = running[killed]] {
    KillWorker(killed, "killed by signal 9 (Killed)");
  });
}

}  // namespace millrace
