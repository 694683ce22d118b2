// Where the time of a recorded training step went. Pure: a Trace in, figures
// out; all of them whole nanoseconds.
//
// At each instant a GPU does exactly one of four things, the first that holds:
// compute (some compute kernel runs), exposed communication (some communication
// kernel), exposed copy (some copy or fill), idle. So the four add up to the
// window however many streams overlap.

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
  std::optional<int64_t> step;  // None: the step of median length.
  bool whole = false;           // All that was recorded, whatever the steps.
};

// Adds up to window_ns.
struct TimeSplit {
  int64_t window_ns = 0;
  int64_t compute_ns = 0;
  int64_t exposed_communication_ns = 0;
  int64_t exposed_copy_ns = 0;
  int64_t idle_ns = 0;
};

struct CategoryTime {
  int64_t num_kernels = 0;
  int64_t sum_ns = 0;  // Of all kernels, side by side or not.
  // Of the instants of compute, those that are this category's; where several
  // run at once, the first of the enum has it. These add up to compute.
  int64_t share_ns = 0;
};

struct CollectiveTime {
  int64_t num_kernels = 0;
  int64_t busy_ns = 0;        // At least one of its kernels runs.
  int64_t overlapped_ns = 0;  // And a compute kernel as well.
  // And no compute kernel; where several collectives run at once, the first of
  // the enum has it. These add up to exposed communication.
  int64_t exposed_ns = 0;
};

// Why a GPU idled, judged by the kernel (or copy) that ended the gap.
enum class GapCause {
  kLaunch,       // The host launched it too late.
  kSynchronize,  // As before, since the host had waited for the GPU.
  kAllocate,     // As before, and most of the gap is cudaMalloc or cudaFree.
  kQueued,       // It was launched before the gap; the GPU itself held it back.
  kUnknown,      // The trace does not say when it was launched.
  kEnd,          // Nothing follows in the window.
};
inline constexpr int kNumGapCauses = 6;

struct Gap {
  int32_t device = 0;
  Interval time;
  GapCause cause = GapCause::kUnknown;
  // Of the work that ended the gap, "" if not recorded: its name, the call that
  // launched it, the framework's operator that it belongs to.
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

// Sums of several devices are device-seconds.
struct DeviceTime {
  int32_t device = 0;
  Interval window;
  TimeSplit split;
  int64_t communication_ns = 0;  // Exposed and overlapped with compute.
  int64_t copy_ns = 0;           // Whatever else runs.
  std::array<CategoryTime, kNumKernelCategories> categories;
  std::array<CollectiveTime, kNumCollectives> collectives;
  std::array<GapTotal, kNumGapCauses> gaps_by_cause;
  // Of the gaps of kLaunch, the part within calls that launch.
  int64_t launch_call_ns = 0;
  int64_t num_kernels = 0;  // Communication included.
  // Compute kernels below kShortKernelNs, and the time when no longer one runs.
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

// Lengths are those of the device that took longest, splits are sums over
// devices.
struct RecordedStep {
  int64_t step = 0;
  int64_t length_ns = 0;
  TimeSplit split;
};

struct Diagnosis {
  std::vector<RecordedStep> steps;  // As recorded; empty without annotations.
  std::optional<int64_t> median_step;
  std::optional<int64_t> step;      // The one diagnosed; none: everything.
  std::vector<DeviceTime> devices;  // By number.
  DeviceTime total;                 // Sums over devices; no streams.
  std::vector<KernelTotal> longest_kernels;
};

// Returns InvalidArgument, with what to do, for a trace without GPU events and
// for a step that was not recorded.
absl::StatusOr<Diagnosis> Diagnose(const Trace& trace,
                                   const DiagnoseRequest& request);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_DIAGNOSE_TRACE_ANALYSIS_H_
