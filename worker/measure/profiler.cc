#include "worker/measure/profiler.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "planner/cost/op_cost.h"
#include "planner/learn/measured_noise.h"
#include "planner/program/op_work.h"
#include "worker/measure/machine.h"
#include "worker/measure/op_timer.h"

namespace millrace {
namespace {

// Share of the time budget. Contention takes one op for every number of ranks.
constexpr double kOpsShare = 0.45;
constexpr double kContentionShare = 0.15;
constexpr double kCommunicationShare = 0.4;
// Channels beyond those of training.
constexpr int32_t kWorldChannel = 100;
constexpr int32_t kGroupChannel = 101;
// More ranks agree through rank 0: an all-reduce of one number sends a message
// between every two of them, which among 64 ranks of two cores takes 0.2 s.
constexpr int32_t kMostAllToAll = 16;

// All ranks of the measurement, and what they agree on.
class Ranks {
 public:
  static absl::StatusOr<Ranks> Create(const ProfilerOptions& options) {
    Ranks ranks(options);
    if (options.num_ranks == 1) return ranks;
    std::vector<Rank> all;
    for (int32_t i = 0; i < options.num_ranks; ++i) all.push_back(Rank{i});
    ASSIGN_OR_RETURN(ranks.world_,
                     options.communicators->Create(
                         {.group = Group::kWorld, .channel = kWorldChannel},
                         all, options.rank));
    return ranks;
  }

  int32_t size() const { return options_->num_ranks; }
  int32_t rank() const { return ToInt(options_->rank); }

  absl::Status Barrier() { return Sum(0).status(); }
  absl::StatusOr<double> Sum(double mine) {
    if (world_ == nullptr) return mine;
    if (size() > kMostAllToAll) return SumThroughRankZero(mine);
    RETURN_IF_ERROR(world_->AllReduce(&mine, 1, DType::kFloat64));
    return mine;
  }
  // Rank 0's value, on every rank.
  absl::StatusOr<double> FromRankZero(double mine) {
    return Sum(rank() == 0 ? mine : 0);
  }
  // Likewise; as many values on every rank.
  absl::Status FromRankZero(std::vector<double>* values) {
    if (world_ == nullptr) return absl::OkStatus();
    if (rank() != 0) std::fill(values->begin(), values->end(), 0.0);
    return world_->AllReduce(
        values->data(), static_cast<int64_t>(values->size()), DType::kFloat64);
  }

  // The communicator of this rank's group; null for a rank that only waits.
  absl::StatusOr<Communicator*> GroupOf(const ProfileCommunication& what) {
    const std::vector<Rank> members = MembersOf(what, options_->rank, size());
    if (members.empty()) return nullptr;
    std::unique_ptr<Communicator>& group = groups_[members];
    if (group == nullptr) {
      ASSIGN_OR_RETURN(group,
                       options_->communicators->Create(
                           {.group = Group::kTensor, .channel = kGroupChannel},
                           members, options_->rank));
    }
    return group.get();
  }

 private:
  explicit Ranks(const ProfilerOptions& options) : options_(&options) {}

  absl::StatusOr<double> SumThroughRankZero(double mine) {
    if (rank() != 0) {
      RETURN_IF_ERROR(world_->Send(&mine, sizeof(mine), 0));
      RETURN_IF_ERROR(world_->Receive(&mine, sizeof(mine), 0));
      return mine;
    }
    double sum = mine;
    for (int32_t peer = 1; peer < size(); ++peer) {
      RETURN_IF_ERROR(world_->Receive(&mine, sizeof(mine), peer));
      sum += mine;
    }
    for (int32_t peer = 1; peer < size(); ++peer) {
      RETURN_IF_ERROR(world_->Send(&sum, sizeof(sum), peer));
    }
    return sum;
  }

  const ProfilerOptions* options_;
  std::unique_ptr<Communicator> world_;
  std::map<std::vector<Rank>, std::unique_ptr<Communicator>> groups_;
};

// Some of what rank 0 `measured` once more, and what both measurements say of
// noise, on every rank.
absl::Status MeasureNoise(const ProfileRequest& request,
                          const std::vector<double>& measured, Scatter repeats,
                          Ranks& ranks, OpTimer& timer, double budget_each_s,
                          HardwareProfile* profile) {
  std::vector<double> log_ratios;
  for (const size_t i : WhatToRepeat(measured)) {
    ASSIGN_OR_RETURN(const OpTimer::Timing again,
                     timer.Time(request.ops[i], budget_each_s));
    log_ratios.push_back(std::log(again.seconds / measured[i]));
  }
  Scatter runs = RepeatScatterOf(std::move(log_ratios));
  for (Scatter* scatter : {&repeats, &runs}) {
    ASSIGN_OR_RETURN(scatter->deviation,
                     ranks.FromRankZero(scatter->deviation));
    ASSIGN_OR_RETURN(
        const double num_compared,
        ranks.FromRankZero(static_cast<double>(scatter->num_compared)));
    scatter->num_compared = std::llround(num_compared);
  }
  RecordNoise(repeats, runs, profile);
  return absl::OkStatus();
}

// Rank 0 times; the others sleep until it has. A failure on rank 0 makes it
// leave, which ends the others' wait.
absl::Status MeasureOps(const ProfileRequest& request, Ranks& ranks,
                        OpTimer& timer, double budget_s,
                        HardwareProfile* profile) {
  const double start_s = MonotonicSeconds();
  std::vector<double> overheads, measured;
  std::vector<Scatter> repeats;
  for (size_t i = 0; ranks.rank() == 0 && i < request.ops.size(); ++i) {
    const double left_s = budget_s - (MonotonicSeconds() - start_s);
    const auto num_left = static_cast<double>(request.ops.size() - i);
    ASSIGN_OR_RETURN(
        const OpTimer::Timing timing,
        timer.Time(request.ops[i], std::max(0.0, left_s / num_left * 0.7)));
    overheads.push_back(timing.overhead_seconds);
    measured.push_back(timing.seconds);
    repeats.push_back(timing.repeats);
  }
  std::vector<double> seconds = measured;
  seconds.resize(request.ops.size());
  RETURN_IF_ERROR(ranks.FromRankZero(&seconds));
  for (size_t i = 0; i < request.ops.size(); ++i) {
    RecordOpTime(request.ops[i], seconds[i], profile);
  }
  double overhead = 0;
  if (!overheads.empty()) {
    std::nth_element(
        overheads.begin(),
        overheads.begin() + static_cast<ptrdiff_t>(overheads.size() / 2),
        overheads.end());
    overhead = overheads[overheads.size() / 2];
  }
  ASSIGN_OR_RETURN(profile->launch_overhead_s, ranks.FromRankZero(overhead));
  return MeasureNoise(request, measured, Pooled(repeats), ranks, timer,
                      0.01 * budget_s, profile);
}

// The largest GEMM that still runs often: what most of a step is made of.
const ProfileOp* ContentionOp(const ProfileRequest& request) {
  constexpr double kMaxFlops = 2e9;
  const ProfileOp* chosen = nullptr;
  double most = 0;
  for (const ProfileOp& op : request.ops) {
    if (op.kind != OpKind::kGemm) continue;
    const double flops = WorkOf(Layout{}, op.kind, op.attributes).flops;
    if (chosen == nullptr || (flops > most && flops <= kMaxFlops)) {
      chosen = &op;
      most = flops;
    }
  }
  return chosen;
}

// Means over a time that all ranks share, not medians of single runs: a rank
// that is off its core does not show in most runs.
absl::Status MeasureContention(const ProfileRequest& request,
                               int32_t ranks_per_host, Ranks& ranks,
                               OpTimer& timer, double budget_s,
                               HardwareProfile* profile) {
  profile->compute_contention = {1.0};
  const ProfileOp* op = ContentionOp(request);
  if (op == nullptr) {
    profile->compute_contention.assign(ranks_per_host, 1.0);
    return absl::OkStatus();
  }
  const double seconds_each = std::min(0.7, budget_s / ranks_per_host);
  double alone = 0;
  for (int32_t num_busy = 1; num_busy <= ranks_per_host; ++num_busy) {
    RETURN_IF_ERROR(ranks.Barrier());
    double mine = 0;
    if (ranks.rank() < num_busy) {
      ASSIGN_OR_RETURN(mine, timer.MeanOver(*op, seconds_each));
    }
    ASSIGN_OR_RETURN(const double sum, ranks.Sum(mine));
    const double mean = sum / num_busy;
    if (num_busy == 1) {
      alone = mean;
    } else {
      profile->compute_contention.push_back(std::max(1.0, mean / alone));
    }
  }
  return absl::OkStatus();
}

absl::Status RunCommunication(const ProfileCommunication& what,
                              Communicator& group, std::vector<char>& buffer) {
  constexpr DType kDType = DType::kFloat32;
  const int64_t num_elements = static_cast<int64_t>(buffer.size()) / 4;
  char* const mine =
      buffer.data() + group.index() * (num_elements / group.size()) * 4;
  switch (what.kind) {
    case OpKind::kAllGather:
      return group.AllGather(mine, buffer.data(), num_elements, kDType);
    case OpKind::kReduceScatter:
      return group.ReduceScatter(buffer.data(), mine, num_elements, kDType);
    case OpKind::kAllReduce:
      return group.AllReduce(buffer.data(), num_elements, kDType);
    case OpKind::kSend:
      return group.index() == 0
                 ? group.Send(buffer.data(), num_elements * 4, 1)
                 : group.Receive(buffer.data(), num_elements * 4, 0);
    default:
      return absl::InvalidArgumentError(absl::StrCat(
          "a profile has no communication of kind ", OpKindName(what.kind)));
  }
}

// One kind and size among all groups at once: seconds of one call, the mean
// over ranks. The number of calls is rank 0's choice.
absl::StatusOr<double> TimeCommunication(const ProfileCommunication& what,
                                         Ranks& ranks, double budget_s) {
  ASSIGN_OR_RETURN(Communicator * group, ranks.GroupOf(what));
  const bool takes_part = group != nullptr;
  const int32_t num_busy = NumBusyRanks(what, ranks.size());
  const int64_t unit = int64_t{what.group_size} * 4;
  std::vector<char> buffer((what.bytes + unit - 1) / unit * unit);
  // Ends as a barrier, so that the next run begins together.
  const auto run = [&](int64_t count) -> absl::StatusOr<double> {
    const double start_s = MonotonicSeconds();
    for (int64_t i = 0; takes_part && i < count; ++i) {
      RETURN_IF_ERROR(RunCommunication(what, *group, buffer));
    }
    const double seconds = takes_part ? MonotonicSeconds() - start_s : 0;
    ASSIGN_OR_RETURN(const double sum, ranks.Sum(seconds));
    return sum / num_busy / static_cast<double>(count);
  };
  RETURN_IF_ERROR(run(1).status());
  ASSIGN_OR_RETURN(const double once, run(2));
  constexpr int kNumSamples = 3;
  const auto count = static_cast<int64_t>(
      std::clamp(budget_s / kNumSamples / std::max(once, 1e-6), 2.0, 200.0));
  ASSIGN_OR_RETURN(const double agreed,
                   ranks.FromRankZero(static_cast<double>(count)));
  std::vector<double> samples;
  for (int i = 0; i < kNumSamples; ++i) {
    ASSIGN_OR_RETURN(const double seconds, run(static_cast<int64_t>(agreed)));
    samples.push_back(seconds);
  }
  std::sort(samples.begin(), samples.end());
  return samples[kNumSamples / 2];
}

absl::Status MeasureCommunication(const ProfileRequest& request, Ranks& ranks,
                                  double budget_s, HardwareProfile* profile) {
  const double start_s = MonotonicSeconds();
  for (size_t i = 0; i < request.communication.size(); ++i) {
    const ProfileCommunication& what = request.communication[i];
    RETURN_IF_ERROR(CheckGroups(what, ranks.size()));
    const double left_s = budget_s - (MonotonicSeconds() - start_s);
    const auto num_left = static_cast<double>(request.communication.size() - i);
    ASSIGN_OR_RETURN(
        const double seconds,
        TimeCommunication(what, ranks, std::max(0.0, left_s / num_left * 0.7)));
    RecordCommunicationTime(what, seconds, profile);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<HardwareProfile> MeasureRequest(const ProfileRequest& request,
                                               const ProfilerOptions& options) {
  const double budget_s = absl::ToDoubleSeconds(options.time_budget);
  HardwareProfile profile;
  profile.ranks_per_host = options.ranks_per_host;
  ASSIGN_OR_RETURN(Ranks ranks, Ranks::Create(options));
  OpTimer timer(options.num_threads);
  RETURN_IF_ERROR(
      MeasureOps(request, ranks, timer, kOpsShare * budget_s, &profile));
  RETURN_IF_ERROR(MeasureContention(request, options.ranks_per_host, ranks,
                                    timer, kContentionShare * budget_s,
                                    &profile));
  RETURN_IF_ERROR(MeasureCommunication(
      request, ranks, kCommunicationShare * budget_s, &profile));
  return profile;
}

absl::StatusOr<HardwareProfile> MeasureHardwareProfile(
    const ProfilerOptions& options) {
  ASSIGN_OR_RETURN(
      const ProfileRequest request,
      BuildProfileRequest(options.job.model, options.job.training,
                          options.num_ranks, options.ranks_per_host));
  ASSIGN_OR_RETURN(HardwareProfile profile, MeasureRequest(request, options));
  ASSIGN_OR_RETURN(const Machine machine, DescribeMachine());
  profile.name = machine.Fingerprint();
  profile.provenance = {
      .machine = machine.Fingerprint(),
      .description = machine.Description(),
      .version = MILLRACE_VERSION,
      .date = absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::Now(),
                               absl::UTCTimeZone()),
      .num_ranks = options.num_ranks,
      .threads_per_device = options.num_threads};
  profile.device_memory_bytes =
      options.job.resources.memory_per_device_bytes.value_or(
          DeviceMemoryBytes(machine, options.ranks_per_host));
  return profile;
}

}  // namespace millrace
