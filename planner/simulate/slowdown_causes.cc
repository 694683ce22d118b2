#include "planner/simulate/slowdown_causes.h"

#include <algorithm>

namespace millrace {
namespace {

SlowdownCause::Kind KindOf(const PassOp& op) {
  if (op.is_pass()) return SlowdownCause::Kind::kPasses;
  if (op.is_own()) return SlowdownCause::Kind::kTransfers;
  switch (op.kind) {
    case PassEventKind::kParameterGather:
      return SlowdownCause::Kind::kGathers;
    case PassEventKind::kGradientReduction:
      return SlowdownCause::Kind::kReductions;
    default:
      return SlowdownCause::Kind::kOptimizer;
  }
}

// The last to end of the ops that `op` waits for; -1 if it waits for none.
int32_t LastWait(const StepOps& ops, size_t op,
                 const std::vector<double>& end_s) {
  int32_t last = -1;
  for (const int32_t wait : ops.WaitsOf(op)) {
    if (last < 0 || end_s[wait] > end_s[last]) last = wait;
  }
  return last;
}

}  // namespace

void CauseFinder::AddStep(const Disturbance& disturbance,
                          const ReplicaTimes& times) {
  ++num_steps_;
  const auto add = [&](size_t op, int32_t replica, const OpTimes& when) {
    const StepOp& where = ops_.step.ops[op];
    seconds_[{KindOf(ops_.ops[op]), where.stage, where.receiver,
              ops_.ops[op].is_own() ? replica : -1}] +=
        replicas_.ExcessSeconds(op, when);
  };
  // The optimizer's ops are the last ones.
  int32_t op = static_cast<int32_t>(
      std::max_element(times.common_end_s.begin(), times.common_end_s.end()) -
      times.common_end_s.begin());
  const OpTimes common{.start_s = times.common_start_s,
                       .end_s = times.common_end_s,
                       .step_time_s = times.step_time_s};
  while (op >= 0 && !ops_.ops[op].is_own()) {
    add(op, -1, common);
    op = LastWait(ops_.step, op, common.end_s);
  }
  if (op < 0) return;
  const int32_t replica = times.last_replica[op];
  const OpTimes own = replicas_.TimesOf(replica, disturbance, times);
  for (; op >= 0; op = LastWait(ops_.step, op, own.end_s))
    add(op, replica, own);
}

std::vector<SlowdownCause> CauseFinder::Causes() const {
  std::vector<SlowdownCause> causes;
  for (const auto& [key, seconds] : seconds_) {
    const auto& [kind, stage, receiver, replica] = key;
    causes.push_back({.kind = kind,
                      .stage = stage,
                      .receiver = receiver,
                      .replica = replica,
                      .seconds = seconds / num_steps_});
  }
  std::stable_sort(causes.begin(), causes.end(),
                   [](const SlowdownCause& a, const SlowdownCause& b) {
                     return a.seconds > b.seconds;
                   });
  return causes;
}

}  // namespace millrace
