#include "planner/lower/arena.h"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/units.h"
#include "planner/lower/arena_occupancy.h"

namespace millrace {
namespace {

struct Lifetime {
  int64_t bytes;  // Rounded up to the alignment.
  InstructionId first;
  InstructionId last;  // In the sequential order.
  LaneClock needed;  // By lane: how much must have finished for it to be dead.
  AliveSteps alive;
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
                      .needed = {},
                      .alive = {}};
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

// Instructions that define a buffer, by lane: the steps of AliveSteps.
using Definitions = std::array<std::vector<InstructionId>, kNumLanes>;

Definitions DefinitionsByLane(const std::vector<int32_t>& by_definition,
                              const std::vector<Lifetime>& lifetimes,
                              const HappensBefore& order) {
  Definitions definitions;
  for (int32_t idx : by_definition) {
    const InstructionId first = lifetimes[idx].first;
    std::vector<InstructionId>& lane =
        definitions[static_cast<int>(order.lane(first))];
    if (lane.empty() || lane.back() != first) lane.push_back(first);
  }
  return definitions;
}

// The first of `definitions` from index `begin` on by which the buffer is dead
// for certain. Most buffers die soon, so the steps start small and double.
int32_t FirstDead(const Lifetime& lifetime,
                  const std::vector<InstructionId>& definitions, int32_t begin,
                  const HappensBefore& order) {
  auto is_dead = [&](InstructionId id) {
    return IsDead(lifetime, order.clock(id));
  };
  const int32_t size = static_cast<int32_t>(definitions.size());
  int32_t end = begin;  // Alive before `begin`.
  for (int32_t step = 1; end < size && !is_dead(definitions[end]); step *= 2) {
    begin = end + 1;
    end = std::min(size, begin + step);
    if (end == size) break;
  }
  const auto first = std::partition_point(
      definitions.begin() + begin, definitions.begin() + end,
      [&](InstructionId id) { return !is_dead(id); });
  return static_cast<int32_t>(first - definitions.begin());
}

void FindAliveSteps(const std::vector<int32_t>& by_definition,
                    const Definitions& definitions, const HappensBefore& order,
                    std::vector<Lifetime>& lifetimes) {
  std::array<int32_t, kNumLanes> next{};
  for (int32_t idx : by_definition) {
    Lifetime& lifetime = lifetimes[idx];
    AliveSteps& alive = lifetime.alive;
    for (int lane = 0; lane < kNumLanes; ++lane) {
      const std::vector<InstructionId>& ids = definitions[lane];
      int32_t& begin = next[lane];
      while (begin < static_cast<int32_t>(ids.size()) &&
             ids[begin] < lifetime.first) {
        ++begin;
      }
      alive.ranges[lane] = {begin, FirstDead(lifetime, ids, begin, order)};
    }
    alive.lane = order.lane(lifetime.first);
    alive.step = next[static_cast<int>(alive.lane)];
  }
}

// The smallest gap between `taken` that holds `bytes`, else the end of all.
int64_t BestFit(std::span<const ByteInterval> taken, int64_t bytes) {
  int64_t best_offset = -1;
  int64_t best_gap = std::numeric_limits<int64_t>::max();
  int64_t end = 0;
  for (const ByteInterval& interval : taken) {
    const int64_t gap = interval.begin - end;
    if (gap >= bytes && gap < best_gap) {
      best_gap = gap;
      best_offset = end;
    }
    end = interval.end;
  }
  return best_offset >= 0 ? best_offset : end;
}

// Places requests in the given order, each where it fits best. Gives up once
// the arena is not below `limit_bytes`; its `bytes` say so. Gives up too once a
// stop is requested.
ArenaPlan Place(const std::vector<int32_t>& placing_order,
                const std::vector<Lifetime>& lifetimes, int64_t limit_bytes,
                ArenaOccupancy& occupancy, const std::stop_token& stop) {
  ArenaPlan plan;
  plan.offsets.assign(lifetimes.size(), -1);
  occupancy.Clear();
  std::vector<ByteInterval> taken;
  for (int32_t idx : placing_order) {
    if (stop.stop_requested()) break;
    const Lifetime& lifetime = lifetimes[idx];
    occupancy.FindTaken(lifetime.alive, taken);
    const int64_t offset = BestFit(taken, lifetime.bytes);
    const int64_t end = offset + lifetime.bytes;
    plan.offsets[idx] = offset;
    plan.bytes = std::max(plan.bytes, end);
    if (plan.bytes >= limit_bytes) break;
    if (lifetime.bytes > 0) occupancy.Add(lifetime.alive, {offset, end});
  }
  return plan;
}

// Three orders to place requests in. Ties keep the order of `by_definition`.

// There are few distinct sizes, so a list for each is faster than sorting.
std::vector<int32_t> LargestFirst(const std::vector<int32_t>& by_definition,
                                  const std::vector<Lifetime>& lifetimes) {
  std::map<int64_t, std::vector<int32_t>, std::greater<>> by_size;
  for (const int32_t idx : by_definition) {
    by_size[lifetimes[idx].bytes].push_back(idx);
  }
  std::vector<int32_t> all;
  all.reserve(by_definition.size());
  for (const auto& [bytes, requests] : by_size) {
    all.insert(all.end(), requests.begin(), requests.end());
  }
  return all;
}

std::vector<int32_t> LongestFirst(const std::vector<int32_t>& by_definition,
                                  const std::vector<Lifetime>& lifetimes) {
  std::vector<int32_t> all = by_definition;
  std::stable_sort(all.begin(), all.end(), [&](int32_t a, int32_t b) {
    return lifetimes[a].last - lifetimes[a].first >
           lifetimes[b].last - lifetimes[b].first;
  });
  return all;
}

std::vector<int32_t> InOrderOfDefinition(
    const std::vector<int32_t>& by_definition, const std::vector<Lifetime>&) {
  return by_definition;
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

// Within two percent of the lower bound, another attempt is not worth its time:
// placing is most of the cost of lowering a large model.
bool IsTight(int64_t bytes, int64_t largest_live_bytes) {
  return bytes - largest_live_bytes <= largest_live_bytes / 50;
}

}  // namespace

ArenaPlan PlanArena(std::span<const ArenaRequest> requests,
                    const HappensBefore& order, const std::stop_token& stop) {
  std::vector<Lifetime> lifetimes = Lifetimes(requests, order);
  std::vector<int32_t> by_definition(lifetimes.size());
  std::iota(by_definition.begin(), by_definition.end(), 0);
  const auto is_before = [&](int32_t a, int32_t b) {
    return lifetimes[a].first < lifetimes[b].first;
  };
  // Lowering gives them in this order already.
  if (!std::is_sorted(by_definition.begin(), by_definition.end(), is_before)) {
    std::stable_sort(by_definition.begin(), by_definition.end(), is_before);
  }
  const Definitions definitions =
      DefinitionsByLane(by_definition, lifetimes, order);
  FindAliveSteps(by_definition, definitions, order, lifetimes);
  std::array<int32_t, kNumLanes> num_steps;
  for (int lane = 0; lane < kNumLanes; ++lane) {
    num_steps[lane] = static_cast<int32_t>(definitions[lane].size());
  }
  ArenaOccupancy occupancy(num_steps);
  const int64_t largest_live_bytes = LargestLiveBytes(lifetimes, order.size());
  ArenaPlan plan{.bytes = std::numeric_limits<int64_t>::max()};
  // Large first is nearly always tight enough; where it is not, long-lived
  // first or the order of definition sometimes is better.
  for (const auto& placing_order :
       {LargestFirst, LongestFirst, InOrderOfDefinition}) {
    ArenaPlan attempt = Place(placing_order(by_definition, lifetimes),
                              lifetimes, plan.bytes, occupancy, stop);
    if (attempt.bytes < plan.bytes) plan = std::move(attempt);
    if (IsTight(plan.bytes, largest_live_bytes)) break;
  }
  plan.largest_live_bytes = largest_live_bytes;
  return plan;
}

}  // namespace millrace
