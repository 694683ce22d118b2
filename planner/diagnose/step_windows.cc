#include "planner/diagnose/step_windows.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

namespace millrace {
namespace {

using StepInterval = std::pair<int64_t, Interval>;

// One interval a step, from its first mark's start to its last mark's end, as
// a device has one mark a stream; by start.
std::vector<StepInterval> MarksOf(const Trace& trace,
                                  std::optional<int32_t> device) {
  std::map<int64_t, Interval> by_step;
  for (const StepMark& mark : trace.steps) {
    if (mark.device != device) continue;
    const auto [found, is_new] = by_step.try_emplace(mark.step, mark.time);
    if (is_new) continue;
    Interval& time = found->second;
    time.start_ns = std::min(time.start_ns, mark.time.start_ns);
    time.end_ns = std::max(time.end_ns, mark.time.end_ns);
  }
  std::vector<StepInterval> steps(by_step.begin(), by_step.end());
  std::sort(steps.begin(), steps.end(),
            [](const StepInterval& a, const StepInterval& b) {
              return a.second.start_ns < b.second.start_ns;
            });
  return steps;
}

int64_t EndOfWorkLaunchedIn(const Trace& trace, const GapExplainer& explainer,
                            int32_t device, const Interval& host) {
  int64_t end_ns = host.end_ns;
  for (const GpuEvent& event : trace.gpu_events) {
    if (event.device != device) continue;
    const HostCall* launch = explainer.LaunchOf(event);
    if (launch == nullptr || launch->time.start_ns < host.start_ns ||
        launch->time.start_ns >= host.end_ns) {
      continue;
    }
    end_ns = std::max(end_ns, event.time.end_ns);
  }
  return end_ns;
}

}  // namespace

WindowByDevice RecordedWindows(const Trace& trace) {
  WindowByDevice windows;
  for (const GpuEvent& event : trace.gpu_events) {
    Interval& window =
        windows.try_emplace(event.device, event.time).first->second;
    window.start_ns = std::min(window.start_ns, event.time.start_ns);
    window.end_ns = std::max(window.end_ns, event.time.end_ns);
  }
  return windows;
}

std::map<int64_t, WindowByDevice> StepWindows(const Trace& trace,
                                              const GapExplainer& explainer) {
  std::map<int64_t, WindowByDevice> windows;
  for (const auto& [device, recorded] : RecordedWindows(trace)) {
    std::vector<StepInterval> steps = MarksOf(trace, device);
    if (steps.empty()) {
      steps = MarksOf(trace, std::nullopt);
      if (steps.empty()) continue;
      Interval& last = steps.back().second;
      last.end_ns = EndOfWorkLaunchedIn(trace, explainer, device, last);
    }
    for (size_t i = 0; i < steps.size(); ++i) {
      Interval window = steps[i].second;
      if (i + 1 < steps.size()) window.end_ns = steps[i + 1].second.start_ns;
      windows[steps[i].first][device] = window;
    }
  }
  return windows;
}

}  // namespace millrace
