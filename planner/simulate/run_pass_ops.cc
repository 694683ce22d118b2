#include "planner/simulate/run_pass_ops.h"

#include <algorithm>
#include <utility>

namespace millrace {
namespace {

constexpr uint64_t kNoiseStream = 0x6e6f697365u;
// So many that their end times fill a processor's vectors, and so few that
// those of all ops stay in its cache.
constexpr int32_t kBlock = 8;

// The stage from which the link that a transfer takes goes to the next one.
int32_t LinkOf(const StepOp& op, int32_t num_stages) {
  return op.receiver == (op.stage + 1) % num_stages ? op.stage : op.receiver;
}
double FactorOf(const std::vector<double>& factors, size_t i) {
  return factors.empty() ? 1 : factors[i];
}

// Without slowdowns the end of an op is known when it starts.
OpTimes RunSteadily(const StepOps& ops) {
  OpTimes times;
  times.start_s.reserve(ops.ops.size());
  times.end_s.reserve(ops.ops.size());
  for (size_t i = 0; i < ops.ops.size(); ++i) {
    double start_s = 0;
    for (const int32_t wait : ops.WaitsOf(i)) {
      start_s = std::max(start_s, times.end_s[wait]);
    }
    times.start_s.push_back(start_s);
    times.end_s.push_back(start_s + ops.ops[i].seconds);
    times.step_time_s = std::max(times.step_time_s, times.end_s.back());
  }
  return times;
}

}  // namespace

OpTimes RunPassOps(const StepOps& ops, const OverlapFactors& overlap) {
  return overlap.compute == 1 && overlap.communication == 1 && !overlap.waits
             ? RunSteadily(ops)
             : RunOps(ops, {.overlap = overlap});
}

ReplicaRun::ReplicaRun(const PassOps& ops, const OpTimes& alone,
                       int32_t num_stages, int32_t num_replicas)
    : ops_(ops),
      alone_(alone),
      num_stages_(num_stages),
      num_replicas_(num_replicas) {
  int32_t num_draws = 0;
  for (size_t i = 0; i < ops.ops.size(); ++i) {
    const PassOp& op = ops.ops[i];
    const double seconds = ops.step.ops[i].seconds;
    // Steady ops keep their exact seconds.
    const double elapsed_s = alone.end_s[i] - alone.start_s[i];
    seconds_.push_back(
        alone.end_s[i] == alone.start_s[i] + seconds ? seconds : elapsed_s);
    if (!op.is_pass()) {
      draw_.push_back(-1);
    } else if (op.bucket_idx > 0) {
      draw_.push_back(-2);  // The part before has it; set below.
    } else {
      draw_.push_back(num_draws++);
    }
  }
  // The parts of a pass have the pass's noise.
  std::vector<int32_t> last(num_stages, -1);
  std::vector<bool> is_joined(ops.ops.size(), false);
  for (size_t i = 0; i < ops.ops.size(); ++i) {
    if (!ops.ops[i].is_own()) {
      for (const int32_t wait : ops.step.WaitsOf(i)) is_joined[wait] = true;
    }
    if (!ops.ops[i].is_pass()) continue;
    int32_t& current = last[ops.step.ops[i].stage];
    if (draw_[i] == -2) {
      draw_[i] = current;
    } else {
      current = draw_[i];
    }
  }
  for (size_t i = 0; i < ops.ops.size(); ++i) {
    if (is_joined[i] && ops.ops[i].is_own()) joined_.push_back(i);
  }
}

template <int kCount>
void ReplicaRun::RunBlock(const Disturbance& disturbance,
                          const LogNormalFactors& noise, int32_t first,
                          std::vector<double>& end_s) const {
  const bool has_noise = disturbance.noise_sigma > 0;
  const double* const slowdown =
      &disturbance.slowdown[static_cast<size_t>(first) * num_stages_];
  uint64_t streams[kCount];
  for (int r = 0; r < kCount; ++r) {
    streams[r] = RandomBits(disturbance.seed ^ kNoiseStream, first + r);
  }
  for (size_t i = 0; i < ops_.ops.size(); ++i) {
    const StepOp& op = ops_.step.ops[i];
    double* const end = &end_s[i * kCount];
    const bool is_gather = ops_.ops[i].kind == PassEventKind::kParameterGather;
    // RunTail() runs these again, after the passes of all replicas.
    const bool is_traffic = !ops_.ops[i].is_own();
    double start[kCount] = {};
    for (const int32_t wait : ops_.step.WaitsOf(i)) {
      const double* const other = &end_s[static_cast<size_t>(wait) * kCount];
      for (int r = 0; r < kCount; ++r) start[r] = std::max(start[r], other[r]);
    }
    double seconds[kCount];
    std::fill(seconds, seconds + kCount, seconds_[i]);
    if (is_traffic) {
      for (int r = 0; r < kCount; ++r) {
        seconds[r] *= FactorOf(
            is_gather ? disturbance.gathers : disturbance.reductions, op.stage);
      }
    } else if (ops_.ops[i].is_pass()) {
      for (int r = 0; r < kCount; ++r) {
        seconds[r] *= slowdown[r * num_stages_ + op.stage];
      }
      for (int r = 0; has_noise && r < kCount; ++r) {
        seconds[r] *= noise.At(RandomUniform(streams[r], draw_[i]));
      }
    } else if (!disturbance.transfers.empty()) {
      const size_t link = LinkOf(op, num_stages_);
      for (int r = 0; r < kCount; ++r) {
        seconds[r] *=
            disturbance.transfers[(first + r) * size_t(num_stages_) + link];
      }
    }
    for (int r = 0; r < kCount; ++r) end[r] = start[r] + seconds[r];
  }
}

template <int kCount>
void ReplicaRun::Collect(const std::vector<double>& end_s, int32_t first,
                         ReplicaTimes& times) const {
  for (const size_t op : joined_) {
    for (int r = 0; r < kCount; ++r) {
      const double end = end_s[op * kCount + r];
      if (end > times.common_end_s[op]) {
        times.common_end_s[op] = end;
        times.last_replica[op] = first + r;
      }
      double& last = times.passes_end_s[first + r];
      if (ops_.ops[op].is_pass()) last = std::max(last, end);
    }
  }
}

void ReplicaRun::RunTail(const Disturbance& disturbance,
                         ReplicaTimes& times) const {
  std::vector<double> slowest(num_stages_, 0);
  for (size_t i = 0; i < disturbance.slowdown.size(); ++i) {
    double& factor = slowest[i % num_stages_];
    factor = std::max(factor, disturbance.slowdown[i]);
  }
  for (size_t i = 0; i < ops_.ops.size(); ++i) {
    const PassOp& op = ops_.ops[i];
    if (op.is_own()) continue;
    const int32_t stage = ops_.step.ops[i].stage;
    double start_s = 0;
    for (const int32_t wait : ops_.step.WaitsOf(i)) {
      start_s = std::max(start_s, times.common_end_s[wait]);
    }
    const double factor = op.kind == PassEventKind::kOptimizer ? slowest[stage]
                          : op.kind == PassEventKind::kParameterGather
                              ? FactorOf(disturbance.gathers, stage)
                              : FactorOf(disturbance.reductions, stage);
    times.common_start_s[i] = start_s;
    times.common_end_s[i] = start_s + seconds_[i] * factor;
    times.step_time_s = std::max(times.step_time_s, times.common_end_s[i]);
  }
}

ReplicaTimes ReplicaRun::Run(const Disturbance& disturbance) const {
  ReplicaTimes times;
  times.passes_end_s.assign(num_replicas_, 0);
  times.common_start_s.assign(ops_.ops.size(), 0);
  times.common_end_s.assign(ops_.ops.size(), 0);
  times.last_replica.assign(ops_.ops.size(), 0);
  const LogNormalFactors noise(disturbance.noise_sigma);
  std::vector<double> end_s(ops_.ops.size() * kBlock);
  int32_t first = 0;
  for (; first + kBlock <= num_replicas_; first += kBlock) {
    RunBlock<kBlock>(disturbance, noise, first, end_s);
    Collect<kBlock>(end_s, first, times);
  }
  for (; first < num_replicas_; ++first) {
    RunBlock<1>(disturbance, noise, first, end_s);
    Collect<1>(end_s, first, times);
  }
  RunTail(disturbance, times);
  return times;
}

OpTimes ReplicaRun::TimesOf(int32_t replica, const Disturbance& disturbance,
                            const ReplicaTimes& step) const {
  OpTimes times{.start_s = step.common_start_s,
                .end_s = std::vector<double>(ops_.ops.size()),
                .step_time_s = step.step_time_s};
  RunBlock<1>(disturbance, LogNormalFactors(disturbance.noise_sigma), replica,
              times.end_s);
  for (size_t i = 0; i < ops_.ops.size(); ++i) {
    if (!ops_.ops[i].is_own()) {
      times.end_s[i] = step.common_end_s[i];
      continue;
    }
    times.start_s[i] = 0;
    for (const int32_t wait : ops_.step.WaitsOf(i)) {
      times.start_s[i] = std::max(times.start_s[i], times.end_s[wait]);
    }
  }
  return times;
}

}  // namespace millrace
