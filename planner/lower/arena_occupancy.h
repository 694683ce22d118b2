// Finds the bytes of an arena that a new buffer must not take, because buffers
// already placed there are alive at the same time. Faster than comparing with
// each of them. Internal to planner/lower/arena.cc.

#ifndef MILLRACE_PLANNER_LOWER_ARENA_OCCUPANCY_H_
#define MILLRACE_PLANNER_LOWER_ARENA_OCCUPANCY_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "planner/program/program.h"

namespace millrace {

struct ByteInterval {
  int64_t begin;
  int64_t end;  // Above begin.
};

// A union of intervals: ascending, with a gap between any two.
class IntervalSet {
 public:
  // False if all of `interval` was in the set.
  bool Add(ByteInterval interval);
  void Clear() { intervals_.clear(); }
  std::span<const ByteInterval> intervals() const { return intervals_; }

 private:
  absl::InlinedVector<ByteInterval, 1> intervals_;
};

// When a buffer is alive, in steps: a lane's steps are its instructions that
// define buffers, counted from zero.
struct AliveSteps {
  struct Range {
    int32_t begin = 0;
    int32_t end = 0;
  };
  Lane lane;     // The lane of the definition,
  int32_t step;  // and its step there.
  // On each lane, the steps from the definition on that may run while the
  // buffer is alive. One range, as what has finished for certain only grows
  // along a lane.
  std::array<Range, kNumLanes> ranges;
};

// Two buffers are alive together if the definition of one, the later, is in a
// range of the other. So a buffer's earlier neighbours are those with a range
// over its definition, and its later neighbours are those defined in its
// ranges. A tree over each lane's steps holds either as unions of bytes, which
// stay small as neighbours in time are neighbours in the arena too.
class ArenaOccupancy {
 public:
  explicit ArenaOccupancy(const std::array<int32_t, kNumLanes>& num_steps);

  void Clear();
  void Add(const AliveSteps& alive, ByteInterval bytes);
  // Replaces `taken` by the bytes of all that are alive together with `alive`,
  // ascending, with a gap between any two.
  void FindTaken(const AliveSteps& alive, std::vector<ByteInterval>& taken);

 private:
  struct AliveNode {
    IntervalSet own;
    // The union of `own` along the path from the root, as of `path_time`. Empty
    // in leaves, which are asked for once or twice.
    std::vector<ByteInterval> path;
    int32_t changed_time = 0;
    int32_t path_time = 0;
  };
  struct LaneTrees {
    int32_t num_steps = 0;
    // Level k, node i: the bytes of buffers alive in all of steps
    // [i, i + 1) x fan-out^k, unless a higher level has them.
    std::vector<std::vector<AliveNode>> alive;
    // A binary tree, root at 1, leaves from num_steps on: the bytes of buffers
    // defined at the steps below.
    std::vector<IntervalSet> defined;
  };
  void AddAlive(LaneTrees& trees, AliveSteps::Range range, ByteInterval bytes);
  // Bytes of all buffers alive at `step`; valid until the next call.
  std::span<const ByteInterval> AliveAt(LaneTrees& trees, int32_t step);
  // Bytes of all buffers defined in `ranges`; valid until the next call.
  std::span<const ByteInterval> DefinedIn(
      const std::array<AliveSteps::Range, kNumLanes>& ranges);

  std::array<LaneTrees, kNumLanes> lanes_;
  int32_t time_ = 0;  // Counts calls of Add.
  std::vector<ByteInterval> defined_;
  std::vector<ByteInterval> alive_;
};

}  // namespace millrace

#endif  // MILLRACE_PLANNER_LOWER_ARENA_OCCUPANCY_H_
