// The recorded events of a training step that a diagnosis needs. A plain value:
// trace_reader.h fills it from a file, and tests fill it by hand.

#ifndef MILLRACE_PLANNER_DIAGNOSE_TRACE_H_
#define MILLRACE_PLANNER_DIAGNOSE_TRACE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "planner/diagnose/intervals.h"

namespace millrace {

inline constexpr int64_t kNoId = -1;

// Names of kernels are long and few, so events hold indices into Trace::names.
inline constexpr int32_t kNoName = -1;

enum class GpuWork { kKernel, kCopy, kFill };

struct GpuEvent {
  Interval time;
  int32_t device = 0;
  int64_t stream = 0;
  GpuWork work = GpuWork::kKernel;
  int32_t name_idx = kNoName;
  int32_t collective_idx = kNoName;  // "Collective name", if recorded.
  int64_t correlation = kNoId;       // The HostCall that launched it.
  int64_t external_id = kNoId;       // The HostOp that it belongs to.
};

// A call of the CUDA runtime or driver that launches, waits or allocates.
struct HostCall {
  Interval time;
  int32_t name_idx = kNoName;
  int64_t correlation = kNoId;
  int64_t thread = kNoId;
};

// An operator of the framework, such as aten::mm.
struct HostOp {
  int64_t external_id = kNoId;
  int32_t name_idx = kNoName;
};

// A "ProfilerStep#7" annotation.
struct StepMark {
  int64_t step = 0;
  Interval time;
  std::optional<int32_t> device;  // Absent: the host's own mark.
};

struct Trace {
  std::vector<std::string> names;
  std::vector<GpuEvent> gpu_events;  // Sorted by start.
  std::vector<HostCall> calls;       // Sorted by start.
  std::vector<HostOp> ops;           // Sorted by external_id.
  std::vector<StepMark> steps;

  std::map<int64_t, std::string> device_names;
  std::optional<int64_t> rank;
  std::optional<int64_t> world_size;

  int64_t num_events = 0;   // Events of all kinds.
  int64_t num_skipped = 0;  // GPU events without a usable ts or dur.
};

// Sorts the lists as the fields promise.
void SortTrace(Trace& trace);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_DIAGNOSE_TRACE_H_
