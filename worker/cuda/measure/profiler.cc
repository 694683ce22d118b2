#include "worker/cuda/measure/profiler.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "kernels/cuda/status.h"
#include "planner/learn/measured_noise.h"
#include "planner/program/op_work.h"
#include "worker/cuda/device/device_memory.h"
#include "worker/cuda/device/handles.h"
#include "worker/cuda/measure/host_link.h"
#include "worker/cuda/measure/link_timer.h"
#include "worker/cuda/measure/op_timer.h"
#include "worker/cuda/measure/overlap.h"
#include "worker/cuda/measure/tuning.h"

namespace millrace {
namespace {

// A lower bound for waits.between_lanes_s. Tiny kernels of one GPU that take
// turns on two lanes show 0.2 us on an H200. Steps in which collectives of two
// GPUs take turns with ops show more: this bound is fitted to such steps
// (docs/results/2026-11-22-small-models-h200.md).
constexpr double kBetweenLanesSeconds = 5.9e-6;

// Share of the time budget.
constexpr double kOpsShare = 0.6;
constexpr double kContentionShare = 0.05;
constexpr double kCommunicationShare = 0.35;
// Share of the time that is left beside the fixed work around a measurement.
constexpr double kUsableShare = 0.6;
// Time to tune products, and until the other ranks give rank 0 up.
constexpr absl::Duration kProductTuningTime = absl::Minutes(1);
constexpr absl::Duration kTuningPatience = absl::Minutes(5);
// Number of values that TimeOps() returns beside the ops.
constexpr size_t kNumBesideOps = 8;
// The least time of an op without its launch. No op is quicker than the launch.
constexpr double kLeastSeconds = 1e-8;

double FlopsOf(const ProfileOp& op) {
  return WorkOf(Layout{}, op.kind, op.attributes).flops;
}

// Numbers that rank 0 tells the others, who sleep meanwhile.
absl::Status Tell(RendezvousStore& store, const std::string& key,
                  const std::vector<double>& numbers) {
  std::vector<std::string> words;
  for (const double number : numbers) {
    words.push_back(absl::StrFormat("%.17g", number));
  }
  return store.Set(key, absl::StrJoin(words, " "));
}
absl::StatusOr<std::vector<double>> Hear(RendezvousStore& store,
                                         const std::string& key,
                                         absl::Duration timeout) {
  ASSIGN_OR_RETURN(const std::string text, store.Get(key, timeout));
  std::vector<double> numbers;
  for (const absl::string_view word : absl::StrSplit(text, ' ')) {
    double number = 0;
    if (!absl::SimpleAtod(word, &number)) {
      return absl::InternalError(
          absl::StrCat("rank 0 said '", text, "' of ", key));
    }
    numbers.push_back(number);
  }
  return numbers;
}

// Many runs of it fit a short time.
const ProfileOp* LargestShort(const ProfileRequest& request, OpKind kind) {
  return LargestWithin(request, kind, 5e11);
}

// Runs the smallest op of each kind once, which loads its kernels. Returns the
// bytes of the device that the process takes then. Later they would be more:
// the driver keeps what the graphs of measurements needed.
absl::StatusOr<int64_t> ProcessBytes(const ProfileRequest& request,
                                     CudaOpTimer& timer) {
  std::map<OpKind, const ProfileOp*> smallest;
  for (const ProfileOp& op : request.ops) {
    const ProfileOp*& chosen = smallest[op.kind];
    if (chosen == nullptr || FlopsOf(op) < FlopsOf(*chosen)) chosen = &op;
  }
  for (const auto& [kind, op] : smallest) {
    const auto loop = timer.MakeLoop(*op, 1);
    if (absl::IsResourceExhausted(loop.status())) continue;
    RETURN_IF_ERROR(loop.status());
    RETURN_IF_ERROR((*loop)->Start());
    RETURN_IF_ERROR((*loop)->Finish().status());
  }
  ASSIGN_OR_RETURN(const int64_t used, UsedDeviceBytes());
  return std::max(int64_t{0}, used - timer.held_bytes());
}

// The mix of ops that a timer runs around each measurement: that of the op's
// own micro-batch, since a chip draws less power, and keeps higher clocks, in
// steps of small micro-batches than in those of large ones.
class Surroundings {
 public:
  // Without mixes ops are timed by themselves.
  Surroundings(std::span<const StepMix> mixes, CudaOpTimer* timer)
      : mixes_(mixes), timer_(timer) {}

  // The indices of ops in an order that changes the mix seldom.
  std::vector<size_t> Order(std::vector<size_t> ops,
                            const ProfileRequest& request) const {
    if (mixes_.empty()) return ops;
    std::stable_sort(ops.begin(), ops.end(), [&](size_t a, size_t b) {
      return MixAround(request.ops[a]) < MixAround(request.ops[b]);
    });
    return ops;
  }

  // To be called before the op is timed.
  absl::Status Enter(const ProfileOp& op) {
    if (mixes_.empty()) return absl::OkStatus();
    const size_t wanted = MixAround(op);
    if (entered_ == wanted) return absl::OkStatus();
    entered_ = wanted;
    RETURN_IF_ERROR(SurroundByLargest(mixes_.first(wanted + 1), *timer_));
    return timer_->WarmUp();
  }

 private:
  size_t MixAround(const ProfileOp& op) const {
    return ClosestMix(mixes_, op.micro_batch);
  }

  std::span<const StepMix> mixes_;
  CudaOpTimer* timer_;
  std::optional<size_t> entered_;
};

// Times again what computes far slower than others of its kind, and takes the
// better: a chip whose clocks are down for a second, as after a pause, spoils
// the rows measured then, which are each other's neighbours in the table.
absl::Status TimeSlowOnesAgain(const ProfileRequest& request,
                               Surroundings& surroundings, CudaOpTimer& timer,
                               std::vector<double>* seconds) {
  constexpr double kSlow = 0.85;           // Share of the median rate.
  constexpr double kLongSeconds = 1e-4;    // Shorter ones are slow by nature.
  constexpr double kBudgetSeconds = 0.02;  // Each.
  std::map<OpKind, std::vector<double>> rates;
  for (size_t i = 0; i < request.ops.size(); ++i) {
    if ((*seconds)[i] < kLongSeconds) continue;
    rates[request.ops[i].kind].push_back(FlopsOf(request.ops[i]) /
                                         (*seconds)[i]);
  }
  for (auto& [kind, of_kind] : rates) {
    std::sort(of_kind.begin(), of_kind.end());
  }
  std::vector<size_t> slow;
  for (size_t i = 0; i < request.ops.size(); ++i) {
    const ProfileOp& op = request.ops[i];
    if ((*seconds)[i] < kLongSeconds) continue;
    const std::vector<double>& of_kind = rates[op.kind];
    if (FlopsOf(op) / (*seconds)[i] < kSlow * of_kind[of_kind.size() / 2]) {
      slow.push_back(i);
    }
  }
  for (const size_t i : surroundings.Order(std::move(slow), request)) {
    const ProfileOp& op = request.ops[i];
    RETURN_IF_ERROR(surroundings.Enter(op));
    ASSIGN_OR_RETURN(const double again, timer.Time(op, kBudgetSeconds));
    (*seconds)[i] = std::min((*seconds)[i], again);
  }
  return absl::OkStatus();
}

// Measures some ops once more, among the same surroundings. Returns deviation
// and number of comparisons, first of passes, then of runs.
absl::StatusOr<std::vector<double>> TimeAgain(
    const ProfileRequest& request, const std::vector<double>& seconds,
    Surroundings& surroundings, CudaOpTimer& timer) {
  constexpr double kBudgetSeconds = 0.02;  // Each.
  const Scatter passes = timer.repeats();
  std::vector<double> log_ratios;
  for (const size_t i : surroundings.Order(WhatToRepeat(seconds), request)) {
    RETURN_IF_ERROR(surroundings.Enter(request.ops[i]));
    ASSIGN_OR_RETURN(const double again,
                     timer.Time(request.ops[i], kBudgetSeconds));
    log_ratios.push_back(std::log(again / seconds[i]));
  }
  const Scatter runs = RepeatScatterOf(std::move(log_ratios));
  return std::vector<double>{
      passes.deviation, static_cast<double>(passes.num_compared),
      runs.deviation, static_cast<double>(runs.num_compared)};
}

// Returns the seconds of each op; zero for an op that does not fit the device.
// They are followed by the launch of the smallest op, the bytes of the device
// that the process takes, the values of TimeAgain(), the time that a kernel
// takes to start behind another lane's, and the time that it takes longer
// behind another op's.
absl::StatusOr<std::vector<double>> TimeOps(const ProfileRequest& request,
                                            double budget_s,
                                            bool has_surroundings,
                                            CudaOpTimer& timer) {
  const double start_s = MonotonicSeconds();
  ASSIGN_OR_RETURN(const int64_t process_bytes, ProcessBytes(request, timer));
  std::span<const StepMix> mixes;
  if (has_surroundings) mixes = request.mixes;
  Surroundings surroundings(mixes, &timer);
  std::vector<size_t> order(request.ops.size());
  std::iota(order.begin(), order.end(), size_t{0});
  order = surroundings.Order(std::move(order), request);
  std::vector<double> seconds(request.ops.size(), 0.0);
  for (size_t done = 0; done < order.size(); ++done) {
    const ProfileOp& op = request.ops[order[done]];
    RETURN_IF_ERROR(surroundings.Enter(op));
    const double left_s = budget_s - (MonotonicSeconds() - start_s);
    const auto num_left = static_cast<double>(order.size() - done);
    const absl::StatusOr<double> time =
        timer.Time(op, std::max(0.0, left_s / num_left * kUsableShare));
    if (!absl::IsResourceExhausted(time.status())) {
      RETURN_IF_ERROR(time.status());
    }
    if (time.ok()) seconds[order[done]] = *time;
  }
  RETURN_IF_ERROR(TimeSlowOnesAgain(request, surroundings, timer, &seconds));
  ASSIGN_OR_RETURN(const std::vector<double> noise,
                   TimeAgain(request, seconds, surroundings, timer));
  // The kernels of the smallest micro-batch are the shortest.
  double behind_others_s = 0;
  if (!mixes.empty()) {
    const absl::StatusOr<double> behind =
        timer.TimeBehindOthers(mixes.front().ops);
    if (!absl::IsResourceExhausted(behind.status())) {
      RETURN_IF_ERROR(behind.status());
      behind_others_s = *behind;
    }
  }
  RETURN_IF_ERROR(timer.SetSurroundings({}));
  constexpr double kLaunchSeconds = 0.01;
  ASSIGN_OR_RETURN(
      const double launch,
      timer.Time({OpKind::kAdd, ElementwiseAttributes{.rows = 1, .cols = 8}},
                 kLaunchSeconds));
  seconds.push_back(launch);
  seconds.push_back(static_cast<double>(process_bytes));
  seconds.insert(seconds.end(), noise.begin(), noise.end());
  ASSIGN_OR_RETURN(seconds.emplace_back(), timer.TimeBetweenLanes());
  seconds.push_back(behind_others_s);
  return seconds;
}

void RecordOps(const ProfileRequest& request,
               const std::vector<double>& seconds, HardwareProfile* profile) {
  const double* const rest = seconds.data() + request.ops.size();
  const double launch_s = rest[0];
  profile->launch_overhead_s = launch_s + rest[7];
  profile->memory_overhead.process = static_cast<int64_t>(rest[1]);
  RecordNoise({.deviation = rest[2], .num_compared = std::llround(rest[3])},
              {.deviation = rest[4], .num_compared = std::llround(rest[5])},
              profile);
  profile->waits.between_lanes_s = std::max(rest[6], kBetweenLanesSeconds);
  for (size_t i = 0; i < request.ops.size(); ++i) {
    if (seconds[i] == 0) continue;
    RecordOpTime(request.ops[i], std::max(kLeastSeconds, seconds[i] - launch_s),
                 profile);
  }
}

// GPUs share nothing that computes, but perhaps power and cooling.
absl::Status MeasureContention(const ProfileRequest& request,
                               const CudaProfilerOptions& options,
                               CudaLinkTimer& links, CudaOpTimer& timer,
                               double budget_s, HardwareProfile* profile) {
  profile->compute_contention = {1.0};
  const ProfileOp* op = LargestShort(request, OpKind::kGemm);
  double alone = 0;
  for (int32_t num_busy = 1; num_busy <= options.ranks_per_host; ++num_busy) {
    double mine = 0;
    RETURN_IF_ERROR(links.Sum(0).status());
    if (op != nullptr && ToInt(options.rank) < num_busy) {
      ASSIGN_OR_RETURN(mine, timer.Time(*op, kUsableShare * budget_s /
                                                 options.ranks_per_host));
    }
    ASSIGN_OR_RETURN(const double sum, links.Sum(mine));
    if (num_busy == 1) {
      alone = sum;
    } else {
      profile->compute_contention.push_back(
          alone == 0 ? 1.0 : std::max(1.0, sum / num_busy / alone));
    }
  }
  return absl::OkStatus();
}

absl::Status MeasureCommunication(const ProfileRequest& request,
                                  CudaLinkTimer& links, double budget_s,
                                  HardwareProfile* profile) {
  const double budget_each_s =
      kUsableShare * budget_s /
      static_cast<double>(std::max<size_t>(1, request.communication.size()));
  for (const ProfileCommunication& what : request.communication) {
    const absl::StatusOr<double> seconds = links.Time(what, budget_each_s);
    // Copy engines cannot do it here, which all ranks hear and have said.
    if (what.by_copy_engines && absl::IsFailedPrecondition(seconds.status())) {
      continue;
    }
    RETURN_IF_ERROR(seconds.status());
    RecordCommunicationTime(what, *seconds, profile);
  }
  return absl::OkStatus();
}

// Agrees with all ranks on the memory of communicators, as rank 0's device
// shows it.
absl::Status AgreeOnCommunicators(const CudaLinkTimer& links,
                                  const CudaProfilerOptions& options,
                                  absl::Duration patience,
                                  HardwareProfile* profile) {
  const std::string key = "profile/communicators";
  std::vector<double> bytes = {
      static_cast<double>(links.first_communicator_bytes()),
      static_cast<double>(links.communicator_bytes())};
  if (options.rank == Rank{0}) {
    RETURN_IF_ERROR(Tell(*options.store, key, bytes));
  } else {
    ASSIGN_OR_RETURN(bytes, Hear(*options.store, key, patience));
    if (bytes.size() != 2) return absl::InternalError("rank 0 said too much");
  }
  // A process that shares the device may have freed memory meanwhile.
  profile->memory_overhead.first_communicator =
      std::max(int64_t{0}, static_cast<int64_t>(bytes[0]));
  profile->memory_overhead.communicator =
      std::max(int64_t{0}, static_cast<int64_t>(bytes[1]));
  return absl::OkStatus();
}

}  // namespace

absl::Status SurroundByLargest(std::span<const StepMix> mixes,
                               CudaOpTimer& timer) {
  for (size_t i = mixes.size(); i > 0; --i) {
    const absl::Status fits = timer.SetSurroundings(mixes[i - 1].ops);
    if (!absl::IsResourceExhausted(fits)) return fits;
  }
  return timer.SetSurroundings({});
}

absl::StatusOr<HardwareProfile> MeasureCudaRequest(
    const ProfileRequest& request, const CudaProfilerOptions& options) {
  const double budget_s = absl::ToDoubleSeconds(options.time_budget);
  // Rank 0's work at its slowest.
  const absl::Duration patience =
      3 * options.time_budget + absl::Minutes(1) +
      (options.tune ? kTuningPatience : absl::ZeroDuration());
  const std::string ops_key = "profile/ops";
  HardwareProfile profile;
  profile.precision = options.precision;
  profile.ranks_per_host = options.ranks_per_host;
  ASSIGN_OR_RETURN(auto timer,
                   CudaOpTimer::Create(options.precision, options.algorithms));
  if (options.working_set_bytes > 0) {
    timer->SetWorkingSet(options.working_set_bytes);
  }
  std::vector<double> seconds;
  if (options.rank == Rank{0}) {
    if (options.tune) {
      ASSIGN_OR_RETURN(profile.tuning,
                       MeasureTuning(TrainingTuningCases(), request,
                                     kProductTuningTime, *timer));
    }
    ASSIGN_OR_RETURN(seconds, TimeOps(request, kOpsShare * budget_s,
                                      options.has_surroundings, *timer));
    if (options.num_ranks > 1) {
      RETURN_IF_ERROR(Tell(*options.store, ops_key, seconds));
    }
  } else {
    ASSIGN_OR_RETURN(seconds, Hear(*options.store, ops_key, patience));
    if (seconds.size() != request.ops.size() + kNumBesideOps) {
      return absl::InternalError("ranks were asked to measure different ops");
    }
  }
  RecordOps(request, seconds, &profile);
  profile.compute_contention = {1.0};
  if (options.num_ranks == 1) {
    ASSIGN_OR_RETURN(profile.host_link, MeasureHostLink(/*links=*/nullptr));
    return profile;
  }
  ASSIGN_OR_RETURN(const auto links,
                   CudaLinkTimer::Create({.num_ranks = options.num_ranks,
                                          .rank = options.rank,
                                          .store = options.store,
                                          .patience = absl::Minutes(2)}));
  RETURN_IF_ERROR(MeasureContention(request, options, *links, *timer,
                                    kContentionShare * budget_s, &profile));
  ASSIGN_OR_RETURN(profile.host_link, MeasureHostLink(links.get()));
  RETURN_IF_ERROR(MeasureCommunication(
      request, *links, kCommunicationShare * budget_s, &profile));
  ASSIGN_OR_RETURN(profile.overlap,
                   MeasureOverlap(request, options.num_ranks, options.rank,
                                  /*by_copy_engines=*/false, *links, *timer));
  if (!profile.copy_engines.empty()) {
    const absl::StatusOr<OverlapFactors> overlap =
        MeasureOverlap(request, options.num_ranks, options.rank,
                       /*by_copy_engines=*/true, *links, *timer);
    // Not among all ranks: their copies are taken to disturb nothing.
    if (!absl::IsFailedPrecondition(overlap.status())) {
      RETURN_IF_ERROR(overlap.status());
      profile.copy_engine_overlap = *overlap;
    }
  }
  RETURN_IF_ERROR(AgreeOnCommunicators(*links, options, patience, &profile));
  return profile;
}

}  // namespace millrace
