#include "planner/lower/arena_occupancy.h"

#include <algorithm>

namespace millrace {
namespace {

// A definition is looked for in one node a level, a range written to several:
// wide nodes make the former cheap.
constexpr int32_t kFanOutBits = 3;
constexpr int32_t kFanOut = 1 << kFanOutBits;

void Append(ByteInterval interval, std::vector<ByteInterval>& to) {
  if (to.empty() || to.back().end < interval.begin) {
    to.push_back(interval);
  } else {
    to.back().end = std::max(to.back().end, interval.end);
  }
}

// Replaces `out` by the union; all are ascending.
void Unite(std::span<const ByteInterval> a, std::span<const ByteInterval> b,
           std::vector<ByteInterval>& out) {
  out.clear();
  size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    Append(a[i].begin < b[j].begin ? a[i++] : b[j++], out);
  }
  while (i < a.size()) Append(a[i++], out);
  while (j < b.size()) Append(b[j++], out);
}

}  // namespace

bool IntervalSet::Add(ByteInterval interval) {
  ByteInterval* const begin = intervals_.data();
  ByteInterval* const end = begin + intervals_.size();
  ByteInterval* const first = std::lower_bound(
      begin, end, interval.begin,
      [](const ByteInterval& a, int64_t offset) { return a.end < offset; });
  if (first == end) {
    intervals_.push_back(interval);
    return true;
  }
  if (interval.end < first->begin) {
    intervals_.insert(intervals_.begin() + (first - begin), interval);
    return true;
  }
  if (first->begin <= interval.begin && interval.end <= first->end) {
    return false;
  }
  ByteInterval* last = first;  // The last that it touches.
  while (last + 1 != end && (last + 1)->begin <= interval.end) ++last;
  first->begin = std::min(first->begin, interval.begin);
  first->end = std::max(last->end, interval.end);
  if (last != first) {
    intervals_.erase(intervals_.begin() + (first + 1 - begin),
                     intervals_.begin() + (last + 1 - begin));
  }
  return true;
}

ArenaOccupancy::ArenaOccupancy(
    const std::array<int32_t, kNumLanes>& num_steps) {
  for (int lane = 0; lane < kNumLanes; ++lane) {
    LaneTrees& trees = lanes_[lane];
    trees.num_steps = num_steps[lane];
    trees.defined.resize(2 * static_cast<size_t>(trees.num_steps));
    for (int32_t nodes = trees.num_steps; nodes > 0;) {
      trees.alive.emplace_back(static_cast<size_t>(nodes));
      nodes = nodes == 1 ? 0 : (nodes + kFanOut - 1) / kFanOut;
    }
  }
}

void ArenaOccupancy::Clear() {
  for (LaneTrees& trees : lanes_) {
    for (IntervalSet& set : trees.defined) set.Clear();
    for (std::vector<AliveNode>& level : trees.alive) {
      for (AliveNode& node : level) {
        node.own.Clear();
        node.path.clear();
        node.changed_time = node.path_time = 0;
      }
    }
  }
  time_ = 0;
}

void ArenaOccupancy::Add(const AliveSteps& alive, ByteInterval bytes) {
  ++time_;
  LaneTrees& own = lanes_[static_cast<int>(alive.lane)];
  for (int32_t node = alive.step + own.num_steps; node >= 1; node /= 2) {
    // Parents have all that their children have.
    if (!own.defined[node].Add(bytes)) break;
  }
  for (int lane = 0; lane < kNumLanes; ++lane) {
    AddAlive(lanes_[lane], alive.ranges[lane], bytes);
  }
}

void ArenaOccupancy::AddAlive(LaneTrees& trees, AliveSteps::Range range,
                              ByteInterval bytes) {
  auto [begin, end] = range;
  for (size_t level = 0; begin < end; ++level) {
    std::vector<AliveNode>& nodes = trees.alive[level];
    auto add = [&](AliveNode& node) {
      if (node.own.Add(bytes)) node.changed_time = time_;
    };
    const bool is_top = level + 1 == trees.alive.size();
    while (begin < end && (is_top || begin % kFanOut != 0)) {
      add(nodes[begin++]);
    }
    while (begin < end && end % kFanOut != 0) add(nodes[--end]);
    begin /= kFanOut;
    end /= kFanOut;
  }
}

void ArenaOccupancy::FindTaken(const AliveSteps& alive,
                               std::vector<ByteInterval>& taken) {
  Unite(AliveAt(lanes_[static_cast<int>(alive.lane)], alive.step),
        DefinedIn(alive.ranges), taken);
}

std::span<const ByteInterval> ArenaOccupancy::AliveAt(LaneTrees& trees,
                                                      int32_t step) {
  std::span<const ByteInterval> above;
  int32_t newest_change = 0;
  for (size_t level = trees.alive.size(); level-- > 1;) {
    AliveNode& node = trees.alive[level][step >> (kFanOutBits * level)];
    newest_change = std::max(newest_change, node.changed_time);
    if (node.path_time < newest_change) {
      Unite(above, node.own.intervals(), node.path);
      node.path_time = time_;
    }
    above = node.path;
  }
  Unite(above, trees.alive[0][step].own.intervals(), alive_);
  return alive_;
}

std::span<const ByteInterval> ArenaOccupancy::DefinedIn(
    const std::array<AliveSteps::Range, kNumLanes>& ranges) {
  defined_.clear();
  auto append = [&](const IntervalSet& set) {
    defined_.insert(defined_.end(), set.intervals().begin(),
                    set.intervals().end());
  };
  for (int lane = 0; lane < kNumLanes; ++lane) {
    if (ranges[lane].begin == ranges[lane].end) continue;
    const LaneTrees& trees = lanes_[lane];
    int32_t begin = ranges[lane].begin + trees.num_steps;
    int32_t end = ranges[lane].end + trees.num_steps;
    for (; begin < end; begin /= 2, end /= 2) {
      if (begin % 2 == 1) append(trees.defined[begin++]);
      if (end % 2 == 1) append(trees.defined[--end]);
    }
  }
  std::sort(defined_.begin(), defined_.end(),
            [](const ByteInterval& a, const ByteInterval& b) {
              return a.begin < b.begin;
            });
  return defined_;
}

}  // namespace millrace
