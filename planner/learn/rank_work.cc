#include "planner/learn/rank_work.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "planner/cost/host_sharing.h"
#include "planner/program/op_table.h"

namespace millrace {

RankWork::RankWork(const std::vector<RankStep>& ranks,
                   const HardwareProfile& profile)
    : ranks_(&ranks),
      profile_(&profile),
      computing_(ranks.size()),
      fills_device_(ranks.size()),
      flows_(ranks.size()) {
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const Program& program = *ranks[rank].program;
    for (const InstructionId id :
         program.lanes[static_cast<int>(Lane::kCompute)]) {
      const TimeSpan& span = ranks[rank].spans[id];
      computing_[rank].push_back(span);
      const OpKind kind = program.instructions[id].kind;
      if (Describe(kind).fills_device) fills_device_[rank].push_back(span);
    }
  }
}

double RankWork::CouldBegin(size_t rank, double ready_s) const {
  if (!profile_->overlap.waits) return ready_s;
  const std::vector<TimeSpan>& spans = fills_device_[rank];
  const auto next =
      std::ranges::upper_bound(spans, ready_s, {}, &TimeSpan::begin_s);
  if (next == spans.begin()) return ready_s;
  return std::max(ready_s, std::prev(next)->end_s);
}

void RankWork::AddFlow(size_t rank, const TimeSpan& span) {
  flows_[rank].push_back(span);
}

std::vector<RankWork::Moment> RankWork::MomentsOf(size_t rank) const {
  std::vector<Moment> changes;
  const auto add = [&](const TimeSpan& span, int host, int flow, int own) {
    changes.push_back({span.begin_s, {}, host, flow, own});
    changes.push_back({span.end_s, {}, -host, -flow, -own});
  };
  const bool shares_cores = SharesCores(profile_->compute_contention);
  for (const TimeSpan& span : computing_[rank]) add(span, 1, 0, 1);
  for (const TimeSpan& span : flows_[rank]) {
    add(span, shares_cores ? 1 : 0, 1, 0);
  }
  if (shares_cores) {
    const auto per_host = static_cast<size_t>(profile_->ranks_per_host);
    const size_t begin = rank / per_host * per_host;
    const size_t end = std::min(begin + per_host, ranks_->size());
    for (size_t other = begin; other < end; ++other) {
      if (other == rank) continue;
      for (const TimeSpan& span : computing_[other]) add(span, 1, 0, 0);
      for (const TimeSpan& span : flows_[other]) add(span, 1, 0, 0);
    }
  }
  std::ranges::sort(changes, {}, &Moment::time_s);
  for (size_t i = 1; i < changes.size(); ++i) {
    const Moment& before = changes[i - 1];
    Moment& here = changes[i];
    here.totals = Grown(before, here.time_s - before.time_s);
    here.num_busy += before.num_busy;
    here.num_flows += before.num_flows;
    here.computes += before.computes;
  }
  return changes;
}

RankWork::Totals RankWork::Grown(const Moment& since, double seconds) const {
  const std::vector<double>& contention = profile_->compute_contention;
  const double slowdown = SharingSlowdown(contention, since.num_busy) *
                          (since.num_flows > 0 ? profile_->overlap.compute : 1);
  Totals totals = since.totals;
  totals.work_s += seconds / slowdown;
  totals.rank_s += seconds * since.num_busy;
  totals.communication_s +=
      seconds / CommunicationSlowdown(contention, since.num_busy);
  totals.flow_s += since.num_flows > 0 ? seconds : 0;
  totals.computing_s += since.computes > 0 ? seconds : 0;
  return totals;
}

RankWork::Totals RankWork::At(size_t rank, double time_s) {
  if (moments_.empty() || known_rank_ != rank) {
    moments_ = MomentsOf(rank);
    known_rank_ = rank;
  }
  const auto next =
      std::ranges::upper_bound(moments_, time_s, {}, &Moment::time_s);
  if (next == moments_.begin()) return {};
  const Moment& since = *std::prev(next);
  return Grown(since, time_s - since.time_s);
}

RankWork::Circumstances RankWork::During(size_t rank, const TimeSpan& span) {
  const Totals before = At(rank, span.begin_s);
  const Totals after = At(rank, span.end_s);
  Circumstances how{.context = {}, .alone_s = after.work_s - before.work_s};
  const double seconds = span.seconds();
  if (seconds <= 0) return how;
  if (SharesCores(profile_->compute_contention)) {
    how.context.num_computing = std::clamp(
        static_cast<int>(std::lround((after.rank_s - before.rank_s) / seconds)),
        1, static_cast<int>(profile_->compute_contention.size()));
  }
  how.context.overlapped = after.flow_s - before.flow_s >= 0.5 * seconds;
  return how;
}

double RankWork::ComputingShare(size_t rank, const TimeSpan& span) {
  if (span.seconds() <= 0) return 0;
  return (At(rank, span.end_s).computing_s -
          At(rank, span.begin_s).computing_s) /
         span.seconds();
}

double RankWork::CommunicationAlone(size_t rank, const TimeSpan& span) {
  return At(rank, span.end_s).communication_s -
         At(rank, span.begin_s).communication_s;
}

}  // namespace millrace
