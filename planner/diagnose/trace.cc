#include "planner/diagnose/trace.h"

#include <algorithm>

namespace millrace {

void SortTrace(Trace& trace) {
  // Stable, so that equal traces give equal diagnoses.
  std::stable_sort(trace.gpu_events.begin(), trace.gpu_events.end(),
                   [](const GpuEvent& a, const GpuEvent& b) {
                     return a.time.start_ns < b.time.start_ns;
                   });
  std::stable_sort(trace.calls.begin(), trace.calls.end(),
                   [](const HostCall& a, const HostCall& b) {
                     return a.time.start_ns < b.time.start_ns;
                   });
  std::stable_sort(trace.ops.begin(), trace.ops.end(),
                   [](const HostOp& a, const HostOp& b) {
                     return a.external_id < b.external_id;
                   });
}

}  // namespace millrace
