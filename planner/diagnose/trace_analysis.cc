#include "planner/diagnose/trace_analysis.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "planner/diagnose/gap_causes.h"

namespace millrace {
namespace {

constexpr size_t kNumLargestGaps = 8;
constexpr size_t kNumLongestKernels = 10;

// --- When each recorded step ran on each GPU ---

using WindowByDevice = std::map<int32_t, Interval>;
using StepInterval = std::pair<int64_t, Interval>;

// Returns one interval for each step, sorted by start. A device has one mark
// for each stream; the interval reaches from the first mark's start to the last
// mark's end.
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
  std::ranges::sort(
      steps, {}, [](const StepInterval& step) { return step.second.start_ns; });
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

// Returns each device's window from its first GPU event to the end of its last.
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

// Returns the windows of each ProfilerStep# annotation. A device's own
// annotations count if it has any, else the host's.
//
// A step reaches to the start of the next one, so idle time between two steps
// belongs to the earlier step. The last step ends with its annotation; by the
// host's annotations it ends with the last work launched in it. Empty if there
// are no annotations.
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

// --- What a GPU did in a window ---

// The part of an event within the window, and what its name says.
struct Piece {
  const GpuEvent* event;
  Interval time;
  bool is_copy;             // Or a fill.
  KernelCategory category;  // For kernels.

  bool is_communication() const {
    return !is_copy && category == KernelCategory::kCommunication;
  }
  bool is_compute() const { return !is_copy && !is_communication(); }
};

template <typename Predicate>
TimeSet TimeOf(const std::vector<Piece>& pieces, Predicate wanted) {
  std::vector<Interval> intervals;
  for (const Piece& piece : pieces) {
    if (wanted(piece)) intervals.push_back(piece.time);
  }
  return MergeIntervals(std::move(intervals));
}

// The disjoint parts of a window.
struct Parts {
  TimeSet compute;
  TimeSet communication;  // Also where a kernel computes.
  TimeSet copy;           // Also where a kernel runs.
  TimeSet idle;
  TimeSplit split;
};

Parts SplitWindow(const std::vector<Piece>& pieces, const Interval& window) {
  Parts parts;
  parts.compute =
      TimeOf(pieces, [](const Piece& piece) { return piece.is_compute(); });
  parts.communication = TimeOf(
      pieces, [](const Piece& piece) { return piece.is_communication(); });
  parts.copy = TimeOf(pieces, [](const Piece& piece) { return piece.is_copy; });
  const TimeSet kernels = Unite(parts.compute, parts.communication);
  parts.idle = Subtract(MergeIntervals({window}), Unite(kernels, parts.copy));
  parts.split = {
      .window_ns = window.length_ns(),
      .compute_ns = TotalNs(parts.compute),
      .exposed_communication_ns = TotalNs(kernels) - TotalNs(parts.compute),
      .exposed_copy_ns = TotalNs(Subtract(parts.copy, kernels)),
      .idle_ns = TotalNs(parts.idle)};
  return parts;
}

class DeviceAnalysis {
 public:
  DeviceAnalysis(const Trace& trace, const GapExplainer& explainer,
                 const std::vector<KernelCategory>& category_by_name,
                 int32_t device, const Interval& window)
      : trace_(trace), explainer_(explainer) {
    time_.device = device;
    time_.window = window;
    for (const GpuEvent& event : trace.gpu_events) {
      if (event.time.start_ns >= window.end_ns) break;
      if (event.device != device) continue;
      const Interval inside = {std::max(event.time.start_ns, window.start_ns),
                               std::min(event.time.end_ns, window.end_ns)};
      if (event.time.start_ns < window.start_ns &&
          event.time.end_ns <= window.start_ns) {
        continue;
      }
      pieces_.push_back({.event = &event,
                         .time = inside,
                         .is_copy = event.work != GpuWork::kKernel,
                         .category = category_by_name[event.name_idx]});
    }
  }

  TimeSplit Split() const { return SplitWindow(pieces_, time_.window).split; }

  DeviceTime Analyse() && {
    parts_ = SplitWindow(pieces_, time_.window);
    time_.split = parts_.split;
    time_.communication_ns = TotalNs(parts_.communication);
    time_.copy_ns = TotalNs(parts_.copy);
    AddCategories();
    AddCollectives();
    AddShortKernels();
    AddCopies();
    AddStreams();
    AddGaps();
    return std::move(time_);
  }

  const std::vector<Piece>& pieces() const { return pieces_; }

 private:
  void AddCategories() {
    for (const Piece& piece : pieces_) {
      if (piece.is_copy) continue;
      ++time_.num_kernels;
      CategoryTime& time =
          time_.categories[static_cast<size_t>(piece.category)];
      ++time.num_kernels;
      time.sum_ns += piece.time.length_ns();
    }
    // Communication comes last in the enum, after all compute.
    TimeSet earlier;
    for (int i = 0; i < kNumKernelCategories; ++i) {
      const TimeSet own = TimeOf(pieces_, [i](const Piece& piece) {
        return !piece.is_copy && static_cast<int>(piece.category) == i;
      });
      if (own.empty()) continue;
      time_.categories[i].share_ns = TotalNs(Subtract(own, earlier));
      earlier = Unite(earlier, own);
    }
  }

  Collective CollectiveOfPiece(const Piece& piece) const {
    const int32_t recorded = piece.event->collective_idx;
    return CollectiveOf(trace_.names[piece.event->name_idx],
                        recorded == kNoName ? "" : trace_.names[recorded]);
  }

  void AddCollectives() {
    std::array<std::vector<Interval>, kNumCollectives> intervals;
    for (const Piece& piece : pieces_) {
      if (!piece.is_communication()) continue;
      const size_t idx = static_cast<size_t>(CollectiveOfPiece(piece));
      ++time_.collectives[idx].num_kernels;
      intervals[idx].push_back(piece.time);
    }
    TimeSet earlier = parts_.compute;
    for (int i = 0; i < kNumCollectives; ++i) {
      const TimeSet own = MergeIntervals(std::move(intervals[i]));
      if (own.empty()) continue;
      CollectiveTime& time = time_.collectives[i];
      time.busy_ns = TotalNs(own);
      time.overlapped_ns = TotalNs(Intersect(own, parts_.compute));
      time.exposed_ns = TotalNs(Subtract(own, earlier));
      earlier = Unite(earlier, own);
    }
  }

  void AddShortKernels() {
    const auto is_short = [](const Piece& piece) {
      return piece.event->time.length_ns() < kShortKernelNs;
    };
    for (const Piece& piece : pieces_) {
      if (!piece.is_compute()) continue;
      ++time_.num_compute_kernels;
      if (is_short(piece)) ++time_.num_short_kernels;
    }
    time_.short_kernel_ns =
        TotalNs(parts_.compute) -
        TotalNs(TimeOf(pieces_, [&is_short](const Piece& piece) {
          return piece.is_compute() && !is_short(piece);
        }));
  }

  void AddCopies() {
    std::map<int32_t, CopyTime> by_name;
    for (const Piece& piece : pieces_) {
      if (!piece.is_copy) continue;
      CopyTime& copy = by_name[piece.event->name_idx];
      copy.name = trace_.names[piece.event->name_idx];
      ++copy.num_copies;
      copy.sum_ns += piece.time.length_ns();
    }
    for (auto& [name_idx, copy] : by_name) {
      time_.copies.push_back(std::move(copy));
    }
    std::ranges::stable_sort(time_.copies, std::greater<>(), &CopyTime::sum_ns);
  }

  void AddStreams() {
    std::map<int64_t, std::vector<Piece>> by_stream;
    for (const Piece& piece : pieces_) {
      by_stream[piece.event->stream].push_back(piece);
    }
    for (const auto& [stream, pieces] : by_stream) {
      const int64_t num_copies =
          std::ranges::count(pieces, true, &Piece::is_copy);
      time_.streams.push_back(
          {.stream = stream,
           .num_kernels = static_cast<int64_t>(pieces.size()) - num_copies,
           .num_copies = num_copies,
           .split = SplitWindow(pieces, time_.window).split});
    }
  }

  void AddGaps() {
    // pieces_ is sorted by start, as the trace's events are.
    size_t piece_idx = 0;
    for (const Interval& idle : parts_.idle) {
      while (piece_idx < pieces_.size() &&
             pieces_[piece_idx].time.start_ns < idle.end_ns) {
        ++piece_idx;
      }
      const GpuEvent* next =
          piece_idx < pieces_.size() ? pieces_[piece_idx].event : nullptr;
      Gap gap = explainer_.Explain(time_.device, idle, next);
      GapTotal& total = time_.gaps_by_cause[static_cast<size_t>(gap.cause)];
      ++total.num_gaps;
      total.idle_ns += idle.length_ns();
      if (gap.cause == GapCause::kLaunch) {
        time_.launch_call_ns += explainer_.LaunchCallNs(idle);
      }
      time_.largest_gaps.push_back(std::move(gap));
      if (time_.largest_gaps.size() > 64 * kNumLargestGaps) KeepLargestGaps();
    }
    KeepLargestGaps();
  }

  void KeepLargestGaps() {
    std::vector<Gap>& gaps = time_.largest_gaps;
    std::ranges::stable_sort(gaps, std::greater<>(), [](const Gap& gap) {
      return gap.time.length_ns();
    });
    if (gaps.size() > kNumLargestGaps) gaps.resize(kNumLargestGaps);
  }

  const Trace& trace_;
  const GapExplainer& explainer_;
  DeviceTime time_;
  std::vector<Piece> pieces_;
  Parts parts_;
};

template <typename Record, typename... Fields>
void AddFields(const Record& from, Record& to, Fields Record::*... fields) {
  ((to.*fields += from.*fields), ...);
}

void AddSplit(const TimeSplit& from, TimeSplit& to) {
  AddFields(from, to, &TimeSplit::window_ns, &TimeSplit::compute_ns,
            &TimeSplit::exposed_communication_ns, &TimeSplit::exposed_copy_ns,
            &TimeSplit::idle_ns);
}

DeviceTime SumOf(const std::vector<DeviceTime>& devices) {
  DeviceTime total;
  std::map<std::string, CopyTime> copies;
  for (const DeviceTime& device : devices) {
    AddSplit(device.split, total.split);
    AddFields(device, total, &DeviceTime::communication_ns,
              &DeviceTime::copy_ns, &DeviceTime::launch_call_ns,
              &DeviceTime::num_kernels, &DeviceTime::num_compute_kernels,
              &DeviceTime::num_short_kernels, &DeviceTime::short_kernel_ns);
    for (int i = 0; i < kNumKernelCategories; ++i) {
      AddFields(device.categories[i], total.categories[i],
                &CategoryTime::num_kernels, &CategoryTime::sum_ns,
                &CategoryTime::share_ns);
    }
    for (int i = 0; i < kNumCollectives; ++i) {
      AddFields(device.collectives[i], total.collectives[i],
                &CollectiveTime::num_kernels, &CollectiveTime::busy_ns,
                &CollectiveTime::overlapped_ns, &CollectiveTime::exposed_ns);
    }
    for (int i = 0; i < kNumGapCauses; ++i) {
      AddFields(device.gaps_by_cause[i], total.gaps_by_cause[i],
                &GapTotal::num_gaps, &GapTotal::idle_ns);
    }
    for (const CopyTime& copy : device.copies) {
      CopyTime& sum = copies[copy.name];
      sum.name = copy.name;
      AddFields(copy, sum, &CopyTime::num_copies, &CopyTime::sum_ns);
    }
  }
  for (auto& [name, copy] : copies) total.copies.push_back(std::move(copy));
  return total;
}

absl::Status NoGpuEvents(const Trace& trace) {
  const std::string found =
      trace.num_skipped > 0
          ? absl::StrCat(trace.num_skipped,
                         " GPU events, all without a usable ts or dur")
          : absl::StrCat(trace.num_events,
                         " events and none of a GPU (category kernel, "
                         "gpu_memcpy or gpu_memset)");
  return absl::InvalidArgumentError(absl::StrCat(
      "the trace holds ", found,
      "; record it with torch.profiler.profile(activities=[ProfilerActivity."
      "CPU, ProfilerActivity.CUDA]), keep the GPU's work within the profiled "
      "region, and end that with torch.cuda.synchronize()"));
}

absl::Status NoSuchStep(int64_t step, const std::vector<RecordedStep>& steps) {
  if (steps.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--step ", step,
        ": the trace has no ProfilerStep# annotations; call profiler.step() "
        "after each training step while recording, or leave --step out"));
  }
  const auto number = [](std::string* out, const RecordedStep& recorded) {
    absl::StrAppend(out, recorded.step);
  };
  return absl::InvalidArgumentError(
      absl::StrCat("--step ", step, ": no such step; the trace has ",
                   absl::StrJoin(steps, ", ", number)));
}

// Returns the step of median length; for an even number of steps the shorter of
// the two in the middle.
int64_t MedianStep(std::vector<RecordedStep> steps) {
  std::ranges::stable_sort(steps, {}, &RecordedStep::length_ns);
  return steps[(steps.size() - 1) / 2].step;
}

std::vector<KernelTotal> LongestKernels(
    const Trace& trace, const std::vector<KernelCategory>& category_by_name,
    const std::map<int32_t, std::pair<int64_t, int64_t>>& count_and_sum) {
  std::vector<KernelTotal> kernels;
  for (const auto& [name_idx, total] : count_and_sum) {
    kernels.push_back({.name = trace.names[name_idx],
                       .category = category_by_name[name_idx],
                       .count = total.first,
                       .sum_ns = total.second});
  }
  std::ranges::stable_sort(kernels, std::greater<>(), &KernelTotal::sum_ns);
  if (kernels.size() > kNumLongestKernels) kernels.resize(kNumLongestKernels);
  return kernels;
}

}  // namespace

absl::StatusOr<Diagnosis> Diagnose(const Trace& trace,
                                   const DiagnoseRequest& request) {
  if (trace.gpu_events.empty()) return NoGpuEvents(trace);
  const GapExplainer explainer(trace);
  std::vector<KernelCategory> category_by_name;
  for (const std::string& name : trace.names) {
    category_by_name.push_back(CategorizeKernel(name));
  }

  Diagnosis diagnosis;
  const std::map<int64_t, WindowByDevice> step_windows =
      StepWindows(trace, explainer);
  for (const auto& [step, windows] : step_windows) {
    RecordedStep time = {.step = step};
    for (const auto& [device, window] : windows) {
      time.length_ns = std::max(time.length_ns, window.length_ns());
      AddSplit(
          DeviceAnalysis(trace, explainer, category_by_name, device, window)
              .Split(),
          time.split);
    }
    diagnosis.steps.push_back(time);
  }
  if (!diagnosis.steps.empty()) {
    diagnosis.median_step = MedianStep(diagnosis.steps);
  }
  if (request.step.has_value() && !step_windows.contains(*request.step)) {
    return NoSuchStep(*request.step, diagnosis.steps);
  }
  if (!request.whole) {
    diagnosis.step =
        request.step.has_value() ? request.step : diagnosis.median_step;
  }

  const WindowByDevice windows = diagnosis.step.has_value()
                                     ? step_windows.at(*diagnosis.step)
                                     : RecordedWindows(trace);
  std::map<int32_t, std::pair<int64_t, int64_t>> count_and_sum;
  for (const auto& [device, window] : windows) {
    DeviceAnalysis analysis(trace, explainer, category_by_name, device, window);
    for (const Piece& piece : analysis.pieces()) {
      if (piece.is_copy) continue;
      auto& [count, sum_ns] = count_and_sum[piece.event->name_idx];
      ++count;
      sum_ns += piece.time.length_ns();
    }
    diagnosis.devices.push_back(std::move(analysis).Analyse());
  }
  diagnosis.total = SumOf(diagnosis.devices);
  diagnosis.longest_kernels =
      LongestKernels(trace, category_by_name, count_and_sum);
  return diagnosis;
}

}  // namespace millrace
