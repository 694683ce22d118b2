// A Timeline as a trace to look at in Perfetto or chrome://tracing: a process a
// rank, a thread a lane, a slice an instruction.

#ifndef MILLRACE_PLANNER_SIMULATE_PERFETTO_TRACE_H_
#define MILLRACE_PLANNER_SIMULATE_PERFETTO_TRACE_H_

#include <string>
#include <vector>

#include "planner/program/program.h"
#include "planner/simulate/pass_timeline.h"
#include "planner/simulate/timeline.h"

namespace millrace {

// JSON of the Trace Event Format (times in microseconds). `programs` are those
// that the timeline is of, by stage; borrowed for the call. An instruction's
// slice has its name, its op kind as category, and phase, micro-batch and
// attributes as arguments.
std::string TimelineToTrace(const std::vector<const Program*>& programs,
                            const Timeline& timeline);

// The same of a step by passes: a process a class of ranks, named by its stage,
// replica and number of ranks. A slice's category is the kind of event.
std::string PassTimelineToTrace(const PassTimeline& timeline);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_SIMULATE_PERFETTO_TRACE_H_
