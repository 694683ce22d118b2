// What both searches of planner/fleet/uneven.h have in common. Internal to
// them.

#ifndef MILLRACE_PLANNER_FLEET_UNEVEN_PARTS_H_
#define MILLRACE_PLANNER_FLEET_UNEVEN_PARTS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "planner/cost/closed_form.h"
#include "planner/cost/framework_behaviour.h"
#include "planner/fleet/uneven.h"
#include "planner/search/all_axes_space.h"

namespace millrace {

// How many of the best by the closed form are simulated.
inline constexpr size_t kUnevenSimulated = 3;

// Devices of one type, with what layers cost there.
struct PricedPool {
  HardwareProfile profile;
  StepModel model;
  PlannedSpace space;  // Of its devices alone.
  int64_t memory_limit;
  double data_hidden_share;

  int64_t UsableDevices(int32_t tensor) const {
    return space.UsableDevices(tensor);
  }
};

// With `joins_networks`, what leaves a node is priced by the slowest network of
// all pools: replicas of several types reduce their gradients together.
absl::StatusOr<std::vector<PricedPool>> PricePools(
    const UnevenSearch& search, const Implementation& implementation,
    bool joins_networks);

// The space of all devices together: its shardings and constraints.
PlannedSpace SpaceOfAll(const UnevenSearch& search);

// Whether the job leaves `value` open or asks for it.
inline bool Permits(const std::optional<int32_t>& pinned, int64_t value) {
  return !pinned.has_value() || *pinned == value;
}

// Whether the job says what each stage computes again.
bool NamesStages(const LayoutConstraints& pinned);
// Else what it allows to compute again, the least first, by the prices of this
// type.
std::vector<Recompute> RecomputesOf(const LayoutConstraints& pinned,
                                    PricedPool& pool, const Layout& layout);

// A candidate, kept while it is among the best.
template <typename Candidate>
class BestFew {
 public:
  explicit BestFew(double slowest_s) : slowest_s_(slowest_s) {}

  // Slower ones are not kept.
  double slowest_s() const {
    return best_.size() < kUnevenSimulated ? slowest_s_ : best_.back().seconds;
  }
  void Add(double seconds, const Candidate& candidate) {
    if (seconds >= slowest_s()) return;
    auto place = best_.begin();
    while (place != best_.end() && place->seconds <= seconds) ++place;
    best_.insert(place, {seconds, candidate});
    if (best_.size() > kUnevenSimulated) best_.pop_back();
  }

  // The quickest as `simulate`, of a candidate, prices them; nullopt for none.
  // Errors are those of `simulate`.
  template <typename Simulate>
  absl::StatusOr<std::optional<UnevenPlan>> Fastest(Simulate simulate) const {
    std::optional<UnevenPlan> fastest;
    for (const Entry& entry : best_) {
      ASSIGN_OR_RETURN(UnevenPlan plan, simulate(entry.candidate));
      if (!fastest.has_value() || plan.step_time_s < fastest->step_time_s) {
        fastest = std::move(plan);
      }
    }
    return fastest;
  }

 private:
  struct Entry {
    double seconds;
    Candidate candidate;
  };

  double slowest_s_;
  std::vector<Entry> best_;
};

}  // namespace millrace

#endif  // MILLRACE_PLANNER_FLEET_UNEVEN_PARTS_H_
