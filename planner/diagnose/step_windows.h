// When each recorded step ran on each GPU.

#ifndef MILLRACE_PLANNER_DIAGNOSE_STEP_WINDOWS_H_
#define MILLRACE_PLANNER_DIAGNOSE_STEP_WINDOWS_H_

#include <cstdint>
#include <map>

#include "planner/diagnose/gap_causes.h"
#include "planner/diagnose/intervals.h"
#include "planner/diagnose/trace.h"

namespace millrace {

using WindowByDevice = std::map<int32_t, Interval>;

// From the first GPU event of each device to the end of its last.
WindowByDevice RecordedWindows(const Trace& trace);

// The windows of each ProfilerStep# annotation. A device's own annotations
// count where it has any, else the host's. A step reaches to the start of the
// next, so that idle time between two steps belongs to the earlier one; the
// last one reaches to the end of its annotation or, by the host's annotations,
// of the last work launched within it. Empty without annotations.
std::map<int64_t, WindowByDevice> StepWindows(const Trace& trace,
                                              const GapExplainer& explainer);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_DIAGNOSE_STEP_WINDOWS_H_
