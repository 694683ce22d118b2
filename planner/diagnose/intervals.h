// Exact arithmetic on sets of time. A set is a sorted list of disjoint
// intervals, none empty; MergeIntervals() makes one from any list. Times are
// whole nanoseconds, so nothing is rounded and the parts of a window add up to
// it.

#ifndef MILLRACE_PLANNER_DIAGNOSE_INTERVALS_H_
#define MILLRACE_PLANNER_DIAGNOSE_INTERVALS_H_

#include <cstdint>
#include <vector>

namespace millrace {

// From `start_ns` up to, but not including, `end_ns`.
struct Interval {
  int64_t start_ns = 0;
  int64_t end_ns = 0;

  int64_t length_ns() const { return end_ns - start_ns; }
  friend bool operator==(const Interval&, const Interval&) = default;
};

using TimeSet = std::vector<Interval>;

// Returns the set that the intervals cover. Touching intervals are joined.
// Intervals that end before they start count as empty.
TimeSet MergeIntervals(std::vector<Interval> intervals);

TimeSet Unite(const TimeSet& a, const TimeSet& b);
TimeSet Intersect(const TimeSet& a, const TimeSet& b);

// Returns the part of `a` that is not in `b`.
TimeSet Subtract(const TimeSet& a, const TimeSet& b);

int64_t TotalNs(const TimeSet& set);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_DIAGNOSE_INTERVALS_H_
