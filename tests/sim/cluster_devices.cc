// A device whose worker dies again and again. Part of Cluster.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/sim/cluster.h"

namespace millrace {

void Cluster::BeginFlapping() {
  flapping_ = WorkerIdx{static_cast<int32_t>(random_() % 2)};
  Flap(options_.num_flaps);
}

void Cluster::Flap(int32_t num_left) {
  for (size_t i = 0; i < workers_.size(); ++i) {
    if (!workers_[i].alive || workers_[i].process.worker != flapping_ ||
        workers_[i].phase != WorkerPhase::kRunning) {
      continue;
    }
    KillWorker(i, "exited with code 1");
    --num_left;
  }
  if (num_left == 0) return;
  At(Random(0.5, 2), [this, num_left] { Flap(num_left); });
}

// A plan for one host fewer is made while the job trains.
void Cluster::Do(const Report& action) {
  if (action.event == "device_left_out") {
    ++num_left_out_;
    left_out_until_ = now_ + absl::Seconds(options_.leave_out_s);
    left_out_life_ = coordinator_life_;
    if (*action.worker != flapping_) Violate("a sound device was left out");
  } else if (action.event == "devices_taken_back") {
    ++num_taken_back_;
    left_out_until_ = absl::InfinitePast();
  }
  const size_t size = coordinator_->members().size();
  const auto of_host = static_cast<size_t>(options_.devices_per_agent);
  if (action.event != "training" || size <= of_host) return;
  At(options_.plan_s, [this, fewer = size - of_host, life = coordinator_life_] {
    if (life == coordinator_life_) planned_sizes_.insert(fewer);
  });
}

void Cluster::CheckLeftOut(const BeginGeneration& action) {
  const bool is_member = std::find(action.members.begin(), action.members.end(),
                                   flapping_) != action.members.end();
  // A coordinator that dies before the next plan forgets the device.
  if (is_member && now_ < left_out_until_ &&
      left_out_life_ == coordinator_life_) {
    Violate(absl::StrCat("worker ", ToInt(flapping_),
                         " has a rank though its device is left out"));
  }
}

}  // namespace millrace
