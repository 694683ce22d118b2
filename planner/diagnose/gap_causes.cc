#include "planner/diagnose/gap_causes.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace millrace {
namespace {

enum class CallKind { kLaunch, kWait, kAllocate };

CallKind KindOf(absl::string_view name) {
  if (absl::StrContains(name, "Synchronize")) return CallKind::kWait;
  // cudaMallocAsync is ordered like a kernel and blocks no host thread.
  const bool is_async = absl::StrContains(name, "Async");
  for (const char* piece : {"Malloc", "Free", "MemAlloc", "MemMap", "MemUnmap",
                            "MemCreate", "MemRelease"}) {
    if (!is_async && absl::StrContains(name, piece)) return CallKind::kAllocate;
  }
  return CallKind::kLaunch;
}

int64_t OverlapNs(const TimeSet& set, const Interval& interval) {
  auto at =
      std::ranges::upper_bound(set, interval.start_ns, {}, &Interval::end_ns);
  int64_t overlap = 0;
  for (; at != set.end() && at->start_ns < interval.end_ns; ++at) {
    overlap += std::min(at->end_ns, interval.end_ns) -
               std::max(at->start_ns, interval.start_ns);
  }
  return overlap;
}

}  // namespace

GapExplainer::GapExplainer(const Trace& trace) : trace_(trace) {
  std::vector<CallKind> kinds;
  kinds.reserve(trace.names.size());
  for (const std::string& name : trace.names) kinds.push_back(KindOf(name));
  std::vector<Interval> launches;
  std::vector<Interval> allocations;
  for (const HostCall& call : trace.calls) {
    switch (kinds[call.name_idx]) {
      case CallKind::kLaunch:
        launches.push_back(call.time);
        if (call.correlation != kNoId) {
          launch_by_correlation_.try_emplace(call.correlation, &call);
        }
        break;
      case CallKind::kWait:
        waits_by_thread_[call.thread].push_back(call.time);
        break;
      case CallKind::kAllocate:
        allocations.push_back(call.time);
        break;
    }
  }
  launch_calls_ = MergeIntervals(std::move(launches));
  allocations_ = MergeIntervals(std::move(allocations));
}

const HostCall* GapExplainer::LaunchOf(const GpuEvent& event) const {
  const auto found = launch_by_correlation_.find(event.correlation);
  return found == launch_by_correlation_.end() ? nullptr : found->second;
}

int64_t GapExplainer::LaunchCallNs(const Interval& idle) const {
  return OverlapNs(launch_calls_, idle);
}

GapCause GapExplainer::CauseOf(const Interval& idle,
                               const GpuEvent* next) const {
  if (next == nullptr) return GapCause::kEnd;
  const HostCall* launch = LaunchOf(*next);
  if (launch == nullptr) return GapCause::kUnknown;
  if (launch->time.end_ns <= idle.start_ns) return GapCause::kQueued;
  if (2 * OverlapNs(allocations_, idle) >= idle.length_ns()) {
    return GapCause::kAllocate;
  }
  const auto waits = waits_by_thread_.find(launch->thread);
  if (waits == waits_by_thread_.end()) return GapCause::kLaunch;
  // Finds the last wait that began before the GPU ran dry. A wait that had
  // returned by then is not the cause.
  const auto after = std::ranges::lower_bound(waits->second, idle.start_ns, {},
                                              &Interval::start_ns);
  if (after == waits->second.begin()) return GapCause::kLaunch;
  const Interval& wait = *(after - 1);
  return wait.end_ns >= idle.start_ns && wait.end_ns <= launch->time.start_ns
             ? GapCause::kSynchronize
             : GapCause::kLaunch;
}

Gap GapExplainer::Explain(int32_t device, const Interval& idle,
                          const GpuEvent* next) const {
  Gap gap = {.device = device, .time = idle, .cause = CauseOf(idle, next)};
  if (next == nullptr) return gap;
  gap.next = trace_.names[next->name_idx];
  if (const HostCall* launch = LaunchOf(*next)) {
    gap.launched_by = trace_.names[launch->name_idx];
  }
  if (next->external_id == kNoId) return gap;
  const auto op = std::ranges::lower_bound(trace_.ops, next->external_id, {},
                                           &HostOp::external_id);
  if (op != trace_.ops.end() && op->external_id == next->external_id) {
    gap.op = trace_.names[op->name_idx];
  }
  return gap;
}

}  // namespace millrace
