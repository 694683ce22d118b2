#include "planner/diagnose/trace.h"

#include <algorithm>

namespace millrace {

void SortTrace(Trace& trace) {
  // Stable sorting makes equal traces give equal diagnoses.
  const auto start = [](const auto& event) { return event.time.start_ns; };
  std::ranges::stable_sort(trace.gpu_events, {}, start);
  std::ranges::stable_sort(trace.calls, {}, start);
  std::ranges::stable_sort(trace.ops, {}, &HostOp::external_id);
}

}  // namespace millrace
