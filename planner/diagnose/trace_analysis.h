// Computes where the time of a recorded training step went. It is pure: it
// turns a Trace into figures, all in whole nanoseconds.
//
// At each moment a GPU is in one of four states, the first that holds: compute
// (a compute kernel runs), exposed communication (a communication kernel runs),
// exposed copy (a copy or fill runs), idle. So the four add up to the window,
// however many streams overlap.

#ifndef MILLRACE_PLANNER_DIAGNOSE_TRACE_ANALYSIS_H_
#define MILLRACE_PLANNER_DIAGNOSE_TRACE_ANALYSIS_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/diagnose/intervals.h"
#include "planner/diagnose/kernel_names.h"
#include "planner/diagnose/trace.h"

namespace millrace {

struct DiagnoseRequest {
  std::optional<int64_t> step;  // Absent: the step of median length.
  bool whole = false;           // Everything recorded, without regard to steps.
};

// The parts add up to window_ns.
struct TimeSplit {
  int64_t window_ns = 0;
  int64_t compute_ns = 0;
  int64_t exposed_communication_ns = 0;
  int64_t exposed_copy_ns = 0;
  int64_t idle_ns = 0;
};

struct CategoryTime {
  int64_t num_kernels = 0;
  int64_t sum_ns = 0;  // Over all its kernels, even if they overlap.
  // The part of compute that belongs to this category. If several categories
  // run at once, the first of the enum gets the time, so the shares add up to
  // compute.
  int64_t share_ns = 0;
};

struct CollectiveTime {
  int64_t num_kernels = 0;
  int64_t busy_ns = 0;        // At least one of its kernels runs.
  int64_t overlapped_ns = 0;  // Part of it beside a compute kernel.
  // The part without a compute kernel. If several collectives run at once, the
  // first of the enum gets the time. These parts add up to exposed
  // communication.
  int64_t exposed_ns = 0;
};

// The cause of idle time, judged by the kernel or copy that ended the gap.
enum class GapCause {
  kLaunch,       // The host launched it too late.
  kSynchronize,  // The same, since the host had waited for the GPU.
  kAllocate,     // The same, and most of the gap is cudaMalloc or cudaFree.
  kQueued,       // Launched before the gap; the GPU itself held it back.
  kUnknown,      // The trace does not say when it was launched.
  kEnd,          // Nothing follows in the window.
};
inline constexpr int kNumGapCauses = 6;

struct Gap {
  int32_t device = 0;
  Interval time;
  GapCause cause = GapCause::kUnknown;
  // The work that ended the gap: its name, the call that launched it, and the
  // framework's operator that it belongs to. Each is "" if not recorded.
  std::string next;
  std::string launched_by;
  std::string op;
};

struct GapTotal {
  int64_t num_gaps = 0;
  int64_t idle_ns = 0;
};

struct StreamTime {
  int64_t stream = 0;
  int64_t num_kernels = 0;
  int64_t num_copies = 0;
  TimeSplit split;
};

struct CopyTime {
  std::string name;  // "Memcpy HtoD (Pageable -> Device)"
  int64_t num_copies = 0;
  int64_t sum_ns = 0;
};

// Sums over several devices are device-seconds.
struct DeviceTime {
  int32_t device = 0;
  Interval window;
  TimeSplit split;
  int64_t communication_ns = 0;  // Exposed and overlapped with compute.
  int64_t copy_ns = 0;           // Even if other work runs.
  std::array<CategoryTime, kNumKernelCategories> categories;
  std::array<CollectiveTime, kNumCollectives> collectives;
  std::array<GapTotal, kNumGapCauses> gaps_by_cause;
  // The part of the gaps of kLaunch that lies within launching calls.
  int64_t launch_call_ns = 0;
  int64_t num_kernels = 0;  // Communication included.
  // Compute kernels shorter than kShortKernelNs, and the time in which no
  // longer one runs.
  int64_t num_compute_kernels = 0;
  int64_t num_short_kernels = 0;
  int64_t short_kernel_ns = 0;
  std::vector<StreamTime> streams;
  std::vector<CopyTime> copies;   // Longest sum first.
  std::vector<Gap> largest_gaps;  // Longest first.
};

inline constexpr int64_t kShortKernelNs = 10'000;

struct KernelTotal {
  std::string name;
  KernelCategory category = KernelCategory::kOther;
  int64_t count = 0;
  int64_t sum_ns = 0;
};

// Lengths are those of the slowest device; splits are sums over devices.
struct RecordedStep {
  int64_t step = 0;
  int64_t length_ns = 0;
  TimeSplit split;
};

struct Diagnosis {
  std::vector<RecordedStep> steps;  // As recorded; empty without annotations.
  std::optional<int64_t> median_step;
  std::optional<int64_t> step;      // The diagnosed step; absent: everything.
  std::vector<DeviceTime> devices;  // Sorted by number.
  DeviceTime total;                 // Sums over devices; no streams.
  std::vector<KernelTotal> longest_kernels;
};

// Returns InvalidArgument that says what to do for a trace without GPU events
// and for a step that was not recorded.
absl::StatusOr<Diagnosis> Diagnose(const Trace& trace,
                                   const DiagnoseRequest& request);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_DIAGNOSE_TRACE_ANALYSIS_H_
