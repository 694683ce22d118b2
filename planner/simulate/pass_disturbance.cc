#include "planner/simulate/pass_disturbance.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "planner/profile/seeded_noise.h"

namespace millrace {
namespace {

// Where the ranks are.
class Places {
 public:
  Places(const PassStep& step, int32_t ranks_per_machine)
      : step_(step), ranks_per_machine_(ranks_per_machine) {}

  int64_t num_ranks() const {
    return static_cast<int64_t>(step_.num_replicas) * step_.costs.num_stages *
           step_.ranks_per_pass;
  }
  int32_t num_machines() const {
    return static_cast<int32_t>((num_ranks() + ranks_per_machine_ - 1) /
                                ranks_per_machine_);
  }
  // The first and last machine of a pass's ranks.
  int64_t FirstMachine(int64_t replica, int64_t stage) const {
    return FirstRank(replica, stage) / ranks_per_machine_;
  }
  int64_t LastMachine(int64_t replica, int64_t stage) const {
    return (FirstRank(replica, stage) + step_.ranks_per_pass - 1) /
           ranks_per_machine_;
  }
  bool IsOn(int64_t machine, int64_t replica, int64_t stage) const {
    return FirstMachine(replica, stage) <= machine &&
           machine <= LastMachine(replica, stage);
  }
  // Whether a transfer between the two stages of a replica takes that link.
  bool Takes(const SlowLink& link, int64_t replica, int64_t from,
             int64_t to) const {
    const auto is_inside = [&](int64_t stage) {
      return FirstMachine(replica, stage) == link.machine &&
             LastMachine(replica, stage) == link.machine;
    };
    const bool stays = is_inside(from) && is_inside(to);
    if (link.is_inside) return stays;
    return !stays && (IsOn(link.machine, replica, from) ||
                      IsOn(link.machine, replica, to));
  }

 private:
  int64_t FirstRank(int64_t replica, int64_t stage) const {
    return FirstRankOf(step_, static_cast<int32_t>(replica),
                       static_cast<int32_t>(stage));
  }

  const PassStep& step_;
  const int32_t ranks_per_machine_;
};

// By replica and stage: that of the slowest rank of a pass.
std::vector<double> SlowdownOfPasses(const PassStep& step, const Places& places,
                                     const PassOptions& options,
                                     const std::vector<double>& machines) {
  std::vector<double> slowdown;
  const int32_t num_stages = step.costs.num_stages;
  slowdown.reserve(static_cast<size_t>(step.num_replicas) * num_stages);
  for (int32_t replica = 0; replica < step.num_replicas; ++replica) {
    for (int32_t stage = 0; stage < num_stages; ++stage) {
      const auto first = machines.begin() + places.FirstMachine(replica, stage);
      const auto last = machines.begin() + places.LastMachine(replica, stage);
      double slowest = *std::max_element(first, last + 1);
      const int64_t begin = FirstRankOf(step, replica, stage);
      for (const SlowRank& slow : options.slow_ranks) {
        if (slow.rank < begin || slow.rank >= begin + step.ranks_per_pass) {
          continue;
        }
        slowest = std::max(
            slowest,
            slow.factor * machines[slow.rank / options.ranks_per_machine]);
      }
      for (const SlowLink& link : options.slow_links) {
        if (places.IsOn(link.machine, replica, stage)) {
          slowest *= link.passes[stage];
        }
      }
      slowdown.push_back(slowest);
    }
  }
  return slowdown;
}

// Fills in what slow links do to transfers, gathers and reductions.
void DisturbLinks(const PassStep& step, const Places& places,
                  const std::vector<SlowLink>& links,
                  Disturbance* disturbance) {
  if (links.empty()) return;
  const int32_t num_stages = step.costs.num_stages;
  disturbance->gathers.assign(num_stages, 1);
  disturbance->reductions.assign(num_stages, 1);
  for (int32_t replica = 0; replica < step.num_replicas; ++replica) {
    for (int32_t stage = 0; stage < num_stages; ++stage) {
      double transfer = 1;
      for (const SlowLink& link : links) {
        if (places.Takes(link, replica, stage, (stage + 1) % num_stages)) {
          transfer = std::max(transfer, link.transfer);
        }
        if (!places.IsOn(link.machine, replica, stage)) continue;
        double& gather = disturbance->gathers[stage];
        double& reduction = disturbance->reductions[stage];
        gather = std::max(gather, link.parameter_gather);
        reduction = std::max(reduction, link.gradient_reduction);
      }
      disturbance->transfers.push_back(transfer);
    }
  }
}

absl::Status CheckPlaces(const PassStep& step, const Places& places,
                         const PassOptions& options) {
  for (const SlowRank& slow : options.slow_ranks) {
    if (slow.rank < 0 || slow.rank >= places.num_ranks() ||
        !(slow.factor >= 1)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "rank ", slow.rank, " is ", slow.factor, " times as slow; there are ",
          places.num_ranks(), " ranks, and the factor is at least 1"));
    }
  }
  for (const SlowLink& link : options.slow_links) {
    const auto is_factor = [](double factor) { return factor >= 1; };
    if (link.machine < 0 || link.machine >= places.num_machines() ||
        link.passes.size() != static_cast<size_t>(step.costs.num_stages) ||
        !std::all_of(link.passes.begin(), link.passes.end(), is_factor) ||
        !is_factor(link.transfer) || !is_factor(link.parameter_gather) ||
        !is_factor(link.gradient_reduction)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "a slow link of machine ", link.machine, " with factors for ",
          link.passes.size(), " stages; there are ", places.num_machines(),
          " machines and ", step.costs.num_stages,
          " stages, and factors are at least 1"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Disturbance> DisturbanceOf(const PassStep& step,
                                          const PassOptions& options,
                                          int32_t* num_slow_machines) {
  const Places places(step, options.ranks_per_machine);
  RETURN_IF_ERROR(CheckPlaces(step, places, options));
  const std::vector<double> machines =
      DrawMachines({.num_machines = places.num_machines(),
                    .share = options.straggler_share,
                    .factor = options.straggler_factor,
                    .seed = options.seed},
                   options.machine_slowdown, num_slow_machines);
  Disturbance disturbance{
      .slowdown = SlowdownOfPasses(step, places, options, machines),
      .noise_sigma = options.noise_sigma};
  DisturbLinks(step, places, options.slow_links, &disturbance);
  return disturbance;
}

int64_t FirstRankOf(const PassStep& step, int32_t replica, int32_t stage) {
  const int64_t pass = step.pipeline_outermost
                           ? int64_t{stage} * step.num_replicas + replica
                           : int64_t{replica} * step.costs.num_stages + stage;
  return pass * step.ranks_per_pass;
}

}  // namespace millrace
