#include "planner/learn/step_observation.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/statistics.h"
#include "base/status_macros.h"
#include "planner/learn/outliers.h"
#include "planner/learn/rank_steps.h"
#include "planner/learn/rank_work.h"

namespace millrace {
namespace {

// A rank is slow if ops that make up this share of its computing took so much
// longer than on other ranks that they are not credible.
constexpr double kSlowShare = 0.5;
constexpr double kSlowBy = 0.18;  // In log(time).

// Calls of one shape in one context, on one rank or of one group.
struct Sum {
  double alone_s = 0;
  double measured_s = 0;
  int64_t num_calls = 0;
};
using Key = std::pair<OpShape, OpContext>;
// All ops that a rank computed in one pass.
struct Pass {
  double alone_s = 0;
  double expected_s = 0;
};
// Indexed by rank. Communication has the rank of the group's first member or of
// the sender.
using Sums = std::map<Key, std::map<size_t, Sum>>;

class Observer {
 public:
  Observer(std::span<const Program> programs, const CostModel& cost,
           const ObservationOptions& options)
      : programs_(programs), cost_(cost), options_(options) {}

  absl::StatusOr<StepObservation> Observe(const Timeline& timeline) {
    ASSIGN_OR_RETURN(
        const std::vector<RankStep> ranks,
        AlignRanks(programs_, timeline, /*from_start=*/options_.ran_apart));
    ranks_ = &ranks;
    work_ = RankWork(ranks, cost_.profile());
    FindMeetings();
    Compute();
    Communicate();
    StepObservation observation;
    observation.passes = PassScatter();
    observation.step_time_s = timeline.step_time_s;
    observation.num_unplaced = num_unplaced_;
    DropSlowRanks(&observation);
    Average(&observation);
    if (!options_.ran_apart) AddGaps(timeline, &observation);
    return observation;
  }

 private:
  struct Flow {
    Meeting members;
    double seconds;  // Since the last participant arrived.
  };

  const Layout& layout() const { return programs_.front().layout; }
  const Instruction& InstructionOf(const Participant& member) const {
    return (*ranks_)[member.rank_idx].program->instructions[member.id];
  }
  const TimeSpan& SpanOf(const Participant& member) const {
    return (*ranks_)[member.rank_idx].spans[member.id];
  }

  void FindMeetings() {
    for (Meeting& meeting : MeetingsOf(programs_)) {
      // All participants end at one moment, so no clocks need to be compared.
      double seconds = SpanOf(meeting.front()).seconds();
      for (const Participant& member : meeting) {
        const TimeSpan& span = SpanOf(member);
        double begin_s = work_.CouldBegin(member.rank_idx, span.begin_s);
        // Communication that ended before there should have been room must have
        // found some.
        if (begin_s >= span.end_s) begin_s = span.begin_s;
        seconds = std::min(seconds, span.end_s - begin_s);
      }
      seconds = std::max(seconds, 0.0);
      for (const Participant& member : meeting) {
        const double end_s = SpanOf(member).end_s;
        work_.AddFlow(member.rank_idx, {end_s - seconds, end_s});
      }
      flows_.push_back({std::move(meeting), seconds});
    }
    std::ranges::stable_sort(flows_, {}, [](const Flow& flow) {
      return flow.members.front().rank_idx;
    });
  }

  void Compute() {
    for (size_t rank = 0; rank < ranks_->size(); ++rank) {
      const RankStep& step = (*ranks_)[rank];
      for (const InstructionId id :
           step.program->lanes[static_cast<int>(Lane::kCompute)]) {
        const Instruction& instruction = step.program->instructions[id];
        const OpShape shape = RowOf(instruction);
        // Without bytes there is no row to compare with.
        if (shape.figures[0] <= 0) continue;
        const TimeSpan& span = step.spans[id];
        const RankWork::Circumstances how = work_.During(rank, span);
        Add({shape, how.context}, rank, how.alone_s * RowShare(instruction),
            span.seconds());
        AddToPass(instruction, rank, how.alone_s);
      }
    }
  }

  void AddToPass(const Instruction& instruction, size_t rank, double alone_s) {
    if (instruction.microbatch_idx < 0) return;
    Pass& pass = passes_[{rank, instruction.phase == Phase::kForward,
                          instruction.microbatch_idx}];
    pass.alone_s += alone_s;
    pass.expected_s +=
        cost_.Seconds(layout(), instruction.kind, instruction.attributes);
  }

  // Compares each pass with the expected time of its ops, since passes differ:
  // only the first one zeroes gradients.
  Scatter PassScatter() const {
    const bool has_one = layout().most_microbatches() == 1;
    std::map<std::pair<size_t, bool>, std::vector<double>> log_ratios;
    for (const auto& [key, pass] : passes_) {
      const auto& [rank, is_forward, microbatch_idx] = key;
      const size_t group =
          has_one ? static_cast<size_t>((*ranks_)[rank].program->stage) : rank;
      if (pass.alone_s <= 0) continue;
      log_ratios[{group, is_forward}].push_back(
          std::log(pass.alone_s / pass.expected_s));
    }
    std::vector<Scatter> scatters;
    for (auto& [group, ratios] : log_ratios) {
      scatters.push_back(ScatterOf(std::move(ratios)));
    }
    return Pooled(scatters);
  }

  // Returns the row's time over the cost model's time of this call. One row
  // stands for calls that take different times: a head that kept its logits, a
  // product that adds to its output.
  double RowShare(const Instruction& instruction) {
    const auto* gemm = std::get_if<GemmAttributes>(&instruction.attributes);
    const bool differs =
        gemm != nullptr ? gemm->accumulate
                        : instruction.kind == OpKind::kCrossEntropyGradient ||
                              instruction.kind == OpKind::kLinearCrossEntropy;
    if (!differs) return 1;
    const double call =
        cost_.Seconds(layout(), instruction.kind, instruction.attributes) -
        cost_.profile().launch_overhead_s;
    return cost_.RowSeconds(RowOf(instruction)) / call;
  }

  void Communicate() {
    const double slowed = cost_.profile().overlap.communication;
    for (const Flow& flow : flows_) {
      const Participant& first = flow.members.front();
      const Instruction& instruction = InstructionOf(first);
      OpShape shape = RowOf(instruction);
      const int64_t hosts = HostsOf(flow.members);
      if (IsTransfer(instruction.kind)) {
        shape = TransferShape(layout(), shape.figures[1], hosts,
                              cost_.profile().ranks_per_host);
      }
      // A profile measures groups that are spread evenly over their hosts.
      if (shape.figures[2] != hosts ||
          !cost_.IsPricedByRow(layout(), instruction.kind,
                               instruction.attributes)) {
        ++num_unplaced_;
        continue;
      }
      const double end_s = SpanOf(first).end_s;
      const TimeSpan span = {end_s - flow.seconds, end_s};
      const double computing = work_.ComputingShare(first.rank_idx, span);
      Add({shape, {.num_computing = 0, .overlapped = computing >= 0.5}},
          first.rank_idx,
          work_.CommunicationAlone(first.rank_idx, span) /
              (1 + (slowed - 1) * computing),
          flow.seconds);
    }
  }

  OpShape RowOf(const Instruction& instruction) const {
    return ShapeOf(layout(), instruction.kind, instruction.attributes,
                   cost_.profile().ranks_per_host);
  }

  int64_t HostsOf(const Meeting& members) const {
    const auto per_host = static_cast<size_t>(cost_.profile().ranks_per_host);
    std::set<size_t> hosts;
    for (const Participant& member : members) {
      hosts.insert(member.rank_idx / per_host);
    }
    return static_cast<int64_t>(hosts.size());
  }

  void Add(const Key& key, size_t rank, double alone_s, double measured_s) {
    Sum& sum = sums_[key][rank];
    sum.alone_s += alone_s;
    sum.measured_s += measured_s;
    ++sum.num_calls;
  }

  std::vector<double> LogRatios(const Key& key,
                                const std::map<size_t, Sum>& by_rank) const {
    constexpr double kLeast = 1e-9;  // A clock's resolution.
    const double expected_s =
        cost_.RowSeconds(key.first) + cost_.profile().launch_overhead_s;
    std::vector<double> ratios;
    for (const auto& [rank, sum] : by_rank) {
      ratios.push_back(
          std::log(std::max(sum.alone_s, kLeast) /
                   (expected_s * static_cast<double>(sum.num_calls))));
    }
    return ratios;
  }

  void DropSlowRanks(StepObservation* observation) {
    std::map<size_t, double> all_s, slow_s;
    for (const auto& [key, by_rank] : sums_) {
      if (IsCommunication(key.first)) continue;
      const std::vector<double> ratios = LogRatios(key, by_rank);
      const std::vector<bool> credible = AreCredible(ratios);
      const double median = MedianOf(ratios);
      size_t i = 0;
      for (const auto& [rank, sum] : by_rank) {
        // A rank alone in its circumstances has no other rank to be compared
        // with.
        if (by_rank.size() > 1) all_s[rank] += sum.measured_s;
        if (!credible[i] && ratios[i] > median + kSlowBy) {
          slow_s[rank] += sum.measured_s;
        }
        ++i;
      }
    }
    for (const auto& [rank, seconds] : slow_s) {
      if (seconds < kSlowShare * all_s[rank]) continue;
      observation->slow_ranks.push_back(static_cast<int32_t>(rank));
    }
    for (auto& [key, by_rank] : sums_) {
      if (IsCommunication(key.first)) continue;
      for (const int32_t rank : observation->slow_ranks) {
        by_rank.erase(static_cast<size_t>(rank));
      }
    }
  }

  void Average(StepObservation* observation) const {
    for (const auto& [key, by_rank] : sums_) {
      const std::vector<double> ratios = LogRatios(key, by_rank);
      const std::vector<bool> credible = AreCredible(ratios);
      Sum total;
      size_t i = 0;
      for (const auto& [rank, sum] : by_rank) {
        if (!credible[i++]) continue;
        total.alone_s += sum.alone_s;
        total.measured_s += sum.measured_s;
        total.num_calls += sum.num_calls;
      }
      if (total.num_calls == 0 || total.alone_s <= 0) continue;
      observation->ops.push_back(
          {.shape = key.first,
           .context = key.second,
           .seconds = total.alone_s / static_cast<double>(total.num_calls),
           .slowdown = total.measured_s / total.alone_s,
           .num_calls = total.num_calls});
    }
  }

  void AddGaps(const Timeline& timeline, StepObservation* observation) const {
    std::vector<double> gaps;
    for (const RankStep& step : *ranks_) {
      gaps.insert(gaps.end(), step.gaps_s.begin(), step.gaps_s.end());
    }
    if (!gaps.empty()) observation->launch_s = MedianOf(std::move(gaps));
    std::vector<double> ends;
    for (const RankTimeline& rank : timeline.ranks) {
      double end_s = 0;
      for (const TimelineEvent& event : rank.events) {
        end_s = std::max(end_s, event.end_s);
      }
      ends.push_back(end_s);
    }
    observation->between_steps_s =
        std::max(0.0, timeline.step_time_s - MedianOf(std::move(ends)));
  }

  const std::span<const Program> programs_;
  const CostModel& cost_;
  const ObservationOptions& options_;
  const std::vector<RankStep>* ranks_ = nullptr;
  RankWork work_;
  std::vector<Flow> flows_;
  Sums sums_;
  // The key is the rank, whether the pass is forward, and the micro-batch.
  std::map<std::tuple<size_t, bool, int32_t>, Pass> passes_;
  int64_t num_unplaced_ = 0;
};

}  // namespace

absl::StatusOr<StepObservation> ObserveStep(std::span<const Program> programs,
                                            const CostModel& cost,
                                            const Timeline& timeline,
                                            const ObservationOptions& options) {
  return Observer(programs, cost, options).Observe(timeline);
}

}  // namespace millrace
