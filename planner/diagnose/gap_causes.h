// Explains why a GPU was idle: what the host did before the work that ended the
// gap.

#ifndef MILLRACE_PLANNER_DIAGNOSE_GAP_CAUSES_H_
#define MILLRACE_PLANNER_DIAGNOSE_GAP_CAUSES_H_

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "planner/diagnose/intervals.h"
#include "planner/diagnose/trace.h"
#include "planner/diagnose/trace_analysis.h"

namespace millrace {

// Borrows the trace, which must outlive it.
class GapExplainer {
 public:
  explicit GapExplainer(const Trace& trace);

  // Explains the gap `idle` that `next` ended; null if nothing followed.
  Gap Explain(int32_t device, const Interval& idle, const GpuEvent* next) const;

  // Returns the call that launched `event`, or null.
  const HostCall* LaunchOf(const GpuEvent& event) const;

  // Returns how much of `idle` lies within calls that launch work.
  int64_t LaunchCallNs(const Interval& idle) const;

 private:
  GapCause CauseOf(const Interval& idle, const GpuEvent* next) const;

  const Trace& trace_;
  std::unordered_map<int64_t, const HostCall*> launch_by_correlation_;
  // Sorted by start. Calls of one thread never overlap.
  std::map<int64_t, std::vector<Interval>> waits_by_thread_;
  TimeSet launch_calls_;
  TimeSet allocations_;
};

}  // namespace millrace

#endif  // MILLRACE_PLANNER_DIAGNOSE_GAP_CAUSES_H_
