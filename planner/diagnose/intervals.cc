#include "planner/diagnose/intervals.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace millrace {

TimeSet MergeIntervals(std::vector<Interval> intervals) {
  std::ranges::sort(intervals, {}, &Interval::start_ns);
  TimeSet merged;
  for (const Interval& interval : intervals) {
    if (interval.end_ns <= interval.start_ns) continue;
    if (!merged.empty() && interval.start_ns <= merged.back().end_ns) {
      merged.back().end_ns = std::max(merged.back().end_ns, interval.end_ns);
    } else {
      merged.push_back(interval);
    }
  }
  return merged;
}

TimeSet Unite(const TimeSet& a, const TimeSet& b) {
  std::vector<Interval> all = a;
  all.insert(all.end(), b.begin(), b.end());
  return MergeIntervals(std::move(all));
}

TimeSet Intersect(const TimeSet& a, const TimeSet& b) {
  TimeSet both;
  size_t i = 0;
  size_t j = 0;
  while (i < a.size() && j < b.size()) {
    const Interval common = {std::max(a[i].start_ns, b[j].start_ns),
                             std::min(a[i].end_ns, b[j].end_ns)};
    if (common.start_ns < common.end_ns) both.push_back(common);
    if (a[i].end_ns < b[j].end_ns) {
      ++i;
    } else {
      ++j;
    }
  }
  return both;
}

TimeSet Subtract(const TimeSet& a, const TimeSet& b) {
  TimeSet rest;
  size_t j = 0;
  for (Interval left : a) {
    while (j < b.size() && b[j].end_ns <= left.start_ns) ++j;
    // b[k] may reach into the next interval of `a`, so j must not pass it.
    for (size_t k = j; k < b.size() && b[k].start_ns < left.end_ns; ++k) {
      if (b[k].start_ns > left.start_ns) {
        rest.push_back({left.start_ns, b[k].start_ns});
      }
      left.start_ns = std::max(left.start_ns, b[k].end_ns);
    }
    if (left.start_ns < left.end_ns) rest.push_back(left);
  }
  return rest;
}

int64_t TotalNs(const TimeSet& set) {
  int64_t total = 0;
  for (const Interval& interval : set) total += interval.length_ns();
  return total;
}

}  // namespace millrace
