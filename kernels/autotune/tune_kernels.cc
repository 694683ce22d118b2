#include "kernels/autotune/tune_kernels.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "kernels/cuda/status.h"
#include "kernels/tuning/tuning_families.h"

namespace millrace {
namespace {

template <auto kDestroy>
struct Destroy {
  template <typename T>
  void operator()(T* handle) const {
    kDestroy(handle);
  }
};
using Stream = std::unique_ptr<CUstream_st, Destroy<&cudaStreamDestroy>>;
using Event = std::unique_ptr<CUevent_st, Destroy<&cudaEventDestroy>>;
using Graph = std::unique_ptr<CUgraph_st, Destroy<&cudaGraphDestroy>>;
using Executable =
    std::unique_ptr<CUgraphExec_st, Destroy<&cudaGraphExecDestroy>>;

absl::StatusOr<Event> MakeEvent() {
  cudaEvent_t event = nullptr;
  RETURN_IF_ERROR(CudaStatus(cudaEventCreate(&event), "create an event"));
  return Event(event);
}

// Times bursts of launches, each a graph, so that no time of the host shows.
class Timer {
 public:
  static absl::StatusOr<Timer> Create(const TuneKernelsOptions& options) {
    cudaStream_t stream = nullptr;
    RETURN_IF_ERROR(
        CudaStatus(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
                   "create a stream to tune on"));
    Timer timer(options, Stream(stream));
    ASSIGN_OR_RETURN(timer.begin_, MakeEvent());
    ASSIGN_OR_RETURN(timer.end_, MakeEvent());
    return timer;
  }

  // Once and to its end, so that errors of the launch show.
  absl::Status Run(const TuningCase& c) {
    RETURN_IF_ERROR(c.launch(0, stream_.get()));
    return CudaStatus(cudaStreamSynchronize(stream_.get()), "run a kernel");
  }

  // Median seconds of one launch.
  absl::StatusOr<double> Seconds(const TuningCase& c) {
    RETURN_IF_ERROR(Run(c));
    ASSIGN_OR_RETURN(const Executable once, Capture(c, c.num_sets));
    ASSIGN_OR_RETURN(double seconds, Burst(once.get()));
    const double each = std::max(1e-7, seconds / c.num_sets);
    const int rounds = static_cast<int>(
        std::clamp(options_.burst_seconds / (each * c.num_sets), 1.0, 400.0));
    const int num_launches = rounds * c.num_sets;
    ASSIGN_OR_RETURN(const Executable burst, Capture(c, num_launches));
    std::vector<double> times;
    for (int i = -1; i < options_.num_bursts; ++i) {
      ASSIGN_OR_RETURN(seconds, Burst(burst.get()));
      if (i >= 0) times.push_back(seconds / num_launches);  // One to warm up.
    }
    std::nth_element(times.begin(), times.begin() + times.size() / 2,
                     times.end());
    return times[times.size() / 2];
  }

 private:
  Timer(const TuneKernelsOptions& options, Stream stream)
      : options_(options), stream_(std::move(stream)) {}

  absl::StatusOr<Executable> Capture(const TuningCase& c, int num_launches) {
    RETURN_IF_ERROR(CudaStatus(
        cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeThreadLocal),
        "begin a graph"));
    absl::Status launched;
    for (int i = 0; i < num_launches && launched.ok(); ++i) {
      launched = c.launch(i % c.num_sets, stream_.get());
    }
    cudaGraph_t captured = nullptr;
    const absl::Status ended = CudaStatus(
        cudaStreamEndCapture(stream_.get(), &captured), "end a graph");
    const Graph graph(captured);
    RETURN_IF_ERROR(launched);
    RETURN_IF_ERROR(ended);
    cudaGraphExec_t executable = nullptr;
    RETURN_IF_ERROR(CudaStatus(
        cudaGraphInstantiate(&executable, graph.get(), 0), "make a graph"));
    return Executable(executable);
  }

  absl::StatusOr<double> Burst(cudaGraphExec_t burst) {
    RETURN_IF_ERROR(
        CudaStatus(cudaEventRecord(begin_.get(), stream_.get()), "time"));
    RETURN_IF_ERROR(
        CudaStatus(cudaGraphLaunch(burst, stream_.get()), "launch a graph"));
    RETURN_IF_ERROR(
        CudaStatus(cudaEventRecord(end_.get(), stream_.get()), "time"));
    RETURN_IF_ERROR(
        CudaStatus(cudaStreamSynchronize(stream_.get()), "run a burst"));
    float milliseconds = 0.0f;
    RETURN_IF_ERROR(CudaStatus(
        cudaEventElapsedTime(&milliseconds, begin_.get(), end_.get()), "time"));
    return 1e-3 * static_cast<double>(milliseconds);
  }

  TuneKernelsOptions options_;
  Stream stream_;
  Event begin_, end_;
};

std::string Describe(const TuningFamily& family, const TuningValues& choice) {
  std::string text;
  for (size_t i = 0; i < family.knobs.size(); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : " ", family.knobs[i].name, "=",
                    choice[i]);
  }
  return text;
}

// Clocks drift while many choices are measured: start and choice once more, in
// turns. Keeps the start unless the choice still gains.
absl::Status Confirm(const TuningValues& start, const TuningMeasure& measure,
                     double least_gain, TuningResult& result) {
  if (result.choice == start) return absl::OkStatus();
  constexpr int kTurns = 3;
  double of_start = 0.0;
  double of_choice = 0.0;
  for (int turn = 0; turn < kTurns; ++turn) {
    ASSIGN_OR_RETURN(const double first, measure(start));
    ASSIGN_OR_RETURN(const double second, measure(result.choice));
    of_start += first / kTurns;
    of_choice += second / kTurns;
  }
  result.start_seconds = of_start;
  result.seconds = of_choice;
  if (of_choice < of_start * (1 - least_gain)) return absl::OkStatus();
  result.choice = start;
  result.seconds = of_start;
  return absl::OkStatus();
}

absl::StatusOr<TuningEntry> TuneCase(const TuningCaseMaker& maker,
                                     const TuneKernelsOptions& options,
                                     Timer& timer) {
  const TuningFamily& family = FamilyOf(maker.kernel);
  ASSIGN_OR_RETURN(const TuningCase c, maker.make());
  std::optional<ScopedTuningChoice::Question> asked;
  {
    const ScopedTuningChoice listening(family);
    RETURN_IF_ERROR(timer.Run(c));
    asked = listening.asked();
  }
  if (!asked.has_value()) {
    return absl::InternalError("its launcher asked for no choice");
  }
  const TuningMeasure measure =
      [&](const TuningValues& choice) -> absl::StatusOr<double> {
    if (choice != asked->start && !c.applies(choice)) {
      return absl::InvalidArgumentError("not a choice for this shape");
    }
    const ScopedTuningChoice scope(family, choice);
    return timer.Seconds(c);
  };
  ASSIGN_OR_RETURN(TuningResult result,
                   Tune(family, asked->start, measure, options.least_gain));
  RETURN_IF_ERROR(Confirm(asked->start, measure, options.least_gain, result));
  options.log(absl::StrFormat(
      "%s: %d choices, %.2f us with %s, %.2f us with %s (%.3fx)", maker.name,
      result.num_measured, 1e6 * result.start_seconds,
      Describe(family, asked->start), 1e6 * result.seconds,
      Describe(family, result.choice), result.start_seconds / result.seconds));
  return TuningEntry{.family = family.name,
                     .shape_class = asked->shape_class,
                     .choice = result.choice,
                     .seconds = result.seconds,
                     .start_seconds = result.start_seconds};
}

}  // namespace

absl::StatusOr<TuningTable> TuneKernels(
    const std::vector<TuningCaseMaker>& cases,
    const TuneKernelsOptions& options, absl::string_view version,
    absl::string_view date) {
  int device = 0;
  cudaDeviceProp properties;
  if (const absl::Status status = CudaStatus(
          cudaGetDevice(&device), "find the device to tune the kernels of");
      !status.ok()) {
    return absl::UnavailableError(status.message());
  }
  RETURN_IF_ERROR(CudaStatus(cudaGetDeviceProperties(&properties, device),
                             "read the name of the device"));
  TuningTable table = {.chip = properties.name,
                       .version = std::string(version),
                       .date = std::string(date)};
  ASSIGN_OR_RETURN(Timer timer, Timer::Create(options));
  for (const TuningCaseMaker& maker : cases) {
    absl::StatusOr<TuningEntry> entry = TuneCase(maker, options, timer);
    if (!entry.ok()) {
      return absl::Status(
          entry.status().code(),
          absl::StrCat("tune ", maker.name, ": ", entry.status().message()));
    }
    const bool is_known =
        std::any_of(table.entries.begin(), table.entries.end(),
                    [&](const TuningEntry& other) {
                      return other.family == entry->family &&
                             other.shape_class == entry->shape_class;
                    });
    if (is_known) {
      options.log(absl::StrCat(maker.name, ": its class is in the table"));
    } else {
      table.entries.push_back(*std::move(entry));
    }
  }
  return table;
}

}  // namespace millrace
