#include "planner/arena.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "base/units.h"

namespace millrace {
namespace {

constexpr int32_t kNever = std::numeric_limits<int32_t>::max();

struct Lifetime {
  int64_t bytes;  // Rounded up to the alignment.
  InstructionId first;
  InstructionId last;  // In the sequential order.
  LaneClock needed;  // By lane: how much must have finished for it to be dead.
};

std::vector<Lifetime> Lifetimes(std::span<const ArenaRequest> requests,
                                const HappensBefore& order) {
  std::vector<Lifetime> lifetimes;
  lifetimes.reserve(requests.size());
  for (const ArenaRequest& request : requests) {
    CHECK(!request.uses.empty());
    Lifetime lifetime{.bytes = RoundUp(request.bytes, kBufferAlignment),
                      .first = request.uses.front(),
                      .last = request.uses.back(),
                      .needed = {}};
    for (InstructionId id : request.uses) {
      int32_t& needed = lifetime.needed[static_cast<int>(order.lane(id))];
      needed = std::max(needed, order.position(id) + 1);
    }
    lifetimes.push_back(lifetime);
  }
  return lifetimes;
}

bool IsDead(const Lifetime& lifetime, const LaneClock& clock) {
  for (int lane = 0; lane < kNumLanes; ++lane) {
    if (lifetime.needed[lane] > clock[lane]) return false;
  }
  return true;
}

// What has finished for certain by every definition from one on. Clocks rise
// along a lane, so the next definition on each lane decides.
class FutureClock {
 public:
  FutureClock(const std::vector<int32_t>& by_definition,
              const std::vector<Lifetime>& lifetimes,
              const HappensBefore& order)
      : order_(order) {
    for (int32_t idx : by_definition) {
      const InstructionId first = lifetimes[idx].first;
      definitions_[static_cast<int>(order.lane(first))].push_back(first);
    }
  }

  LaneClock From(InstructionId id) {
    LaneClock earliest;
    earliest.fill(kNever);
    for (int lane = 0; lane < kNumLanes; ++lane) {
      const std::vector<InstructionId>& definitions = definitions_[lane];
      size_t& next = next_[lane];
      while (next < definitions.size() && definitions[next] < id) ++next;
      if (next == definitions.size()) continue;
      const LaneClock& clock = order_.clock(definitions[next]);
      for (int i = 0; i < kNumLanes; ++i) {
        earliest[i] = std::min(earliest[i], clock[i]);
      }
    }
    return earliest;
  }

 private:
  const HappensBefore& order_;
  std::array<std::vector<InstructionId>, kNumLanes> definitions_;
  std::array<size_t, kNumLanes> next_{};
};

// conflicts[i]: the requests that must not share bytes with i. Sweeps the
// definitions in order and keeps only those that a later one could still meet,
// so the cost is the number of conflicts, not of pairs.
std::vector<std::vector<int32_t>> FindConflicts(
    const std::vector<int32_t>& by_definition,
    const std::vector<Lifetime>& lifetimes, const HappensBefore& order) {
  std::vector<std::vector<int32_t>> conflicts(lifetimes.size());
  FutureClock future(by_definition, lifetimes, order);
  std::vector<int32_t> candidates;
  for (int32_t idx : by_definition) {
    const LaneClock& clock = order.clock(lifetimes[idx].first);
    for (int32_t other : candidates) {
      if (IsDead(lifetimes[other], clock)) continue;
      conflicts[idx].push_back(other);
      conflicts[other].push_back(idx);
    }
    candidates.push_back(idx);
    const LaneClock earliest = future.From(lifetimes[idx].first);
    std::erase_if(candidates, [&](int32_t other) {
      return IsDead(lifetimes[other], earliest);
    });
  }
  return conflicts;
}

struct Interval {
  int64_t begin;
  int64_t end;
};

// The smallest gap between `taken` that holds `bytes`, else the end of all.
int64_t BestFit(std::vector<Interval>& taken, int64_t bytes) {
  std::sort(
      taken.begin(), taken.end(),
      [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
  int64_t best_offset = -1;
  int64_t best_gap = std::numeric_limits<int64_t>::max();
  int64_t end = 0;
  for (const Interval& interval : taken) {
    const int64_t gap = interval.begin - end;
    if (gap >= bytes && gap < best_gap) {
      best_gap = gap;
      best_offset = end;
    }
    end = std::max(end, interval.end);
  }
  return best_offset >= 0 ? best_offset : end;
}

// Places requests in the given order, each where it fits best.
ArenaPlan Place(const std::vector<int32_t>& placing_order,
                const std::vector<Lifetime>& lifetimes,
                const std::vector<std::vector<int32_t>>& conflicts) {
  ArenaPlan plan;
  plan.offsets.assign(lifetimes.size(), -1);
  std::vector<Interval> taken;
  for (int32_t idx : placing_order) {
    taken.clear();
    for (int32_t other : conflicts[idx]) {
      const int64_t offset = plan.offsets[other];
      if (offset >= 0) {
        taken.push_back({offset, offset + lifetimes[other].bytes});
      }
    }
    plan.offsets[idx] = BestFit(taken, lifetimes[idx].bytes);
    plan.bytes = std::max(plan.bytes, plan.offsets[idx] + lifetimes[idx].bytes);
  }
  return plan;
}

int64_t LargestLiveBytes(const std::vector<Lifetime>& lifetimes,
                         InstructionId num_instructions) {
  std::vector<int64_t> change(num_instructions + 1);
  for (const Lifetime& lifetime : lifetimes) {
    change[lifetime.first] += lifetime.bytes;
    change[lifetime.last + 1] -= lifetime.bytes;
  }
  int64_t live = 0, largest = 0;
  for (int64_t bytes : change) {
    live += bytes;
    largest = std::max(largest, live);
  }
  return largest;
}

// Within two percent of what no plan can beat, another attempt is not worth its
// time: placing is most of the cost of lowering a large model.
bool IsTight(int64_t bytes, int64_t largest_live_bytes) {
  return bytes - largest_live_bytes <= largest_live_bytes / 50;
}

}  // namespace

ArenaPlan PlanArena(std::span<const ArenaRequest> requests,
                    const HappensBefore& order) {
  const std::vector<Lifetime> lifetimes = Lifetimes(requests, order);
  std::vector<int32_t> by_definition(lifetimes.size());
  std::iota(by_definition.begin(), by_definition.end(), 0);
  std::stable_sort(by_definition.begin(), by_definition.end(),
                   [&](int32_t a, int32_t b) {
                     return lifetimes[a].first < lifetimes[b].first;
                   });
  const std::vector<std::vector<int32_t>> conflicts =
      FindConflicts(by_definition, lifetimes, order);

  // Long-lived or large first packs tightest as a rule, in order of definition
  // sometimes: the best of them counts.
  std::vector<int32_t> by_size = by_definition;
  std::stable_sort(by_size.begin(), by_size.end(), [&](int32_t a, int32_t b) {
    return lifetimes[a].bytes > lifetimes[b].bytes;
  });
  std::vector<int32_t> by_duration = by_definition;
  std::stable_sort(by_duration.begin(), by_duration.end(),
                   [&](int32_t a, int32_t b) {
                     return lifetimes[a].last - lifetimes[a].first >
                            lifetimes[b].last - lifetimes[b].first;
                   });
  const int64_t largest_live_bytes = LargestLiveBytes(lifetimes, order.size());
  ArenaPlan plan{.bytes = std::numeric_limits<int64_t>::max()};
  for (const std::vector<int32_t>* placing_order :
       {&by_duration, &by_size, &by_definition}) {
    ArenaPlan attempt = Place(*placing_order, lifetimes, conflicts);
    if (attempt.bytes < plan.bytes) plan = std::move(attempt);
    if (IsTight(plan.bytes, largest_live_bytes)) break;
  }
  plan.largest_live_bytes = largest_live_bytes;
  return plan;
}

}  // namespace millrace
