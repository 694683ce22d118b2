#include "planner/simulate/run_pass_ops.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <utility>

namespace millrace {
namespace {

constexpr uint64_t kNoiseStream = 0x6e6f697365u;
// So many that their end times fill a processor's vectors, and so few that
// those of all ops stay in its cache.
constexpr int32_t kBlock = 8;

bool Computes(const ClusterOp& op) {
  return op.is_pass() || op.kind == ClusterEventKind::kOptimizer;
}

// The stage from which the link that a transfer takes goes to the next one.
int32_t LinkOf(const ClusterOp& op, int32_t num_stages) {
  return op.receiver == (op.stage + 1) % num_stages ? op.stage : op.receiver;
}
double FactorOf(const std::vector<double>& factors, size_t i) {
  return factors.empty() ? 1 : factors[i];
}

// Without slowdowns the end of an op is known when it starts.
OpTimes RunSteadily(const ClusterOps& ops) {
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

// From event to event, with what is under way on each stage.
class Engine {
 public:
  Engine(const ClusterOps& ops, const OverlapFactors& overlap)
      : ops_(ops), overlap_(overlap), active_(ops.ops.size()) {
    int32_t num_stages = 0;
    for (const ClusterOp& op : ops.ops) {
      num_stages = std::max(num_stages, op.stage + 1);
    }
    stages_.resize(num_stages);
    times_.start_s.assign(ops.ops.size(), 0);
    times_.end_s.assign(ops.ops.size(), 0);
    num_waits_.assign(ops.ops.size(), 0);
    follower_begin_.assign(ops.ops.size() + 1, 0);
    for (const int32_t wait : ops.waits) ++follower_begin_[wait + 1];
    for (size_t i = 0; i < ops.ops.size(); ++i) {
      follower_begin_[i + 1] += follower_begin_[i];
    }
    followers_.resize(ops.waits.size());
    std::vector<int32_t> next(follower_begin_.begin(),
                              follower_begin_.end() - 1);
    for (size_t i = 0; i < ops.ops.size(); ++i) {
      for (const int32_t wait : ops.WaitsOf(i)) {
        followers_[next[wait]++] = static_cast<int32_t>(i);
        ++num_waits_[i];
      }
    }
  }

  OpTimes Run() {
    for (size_t i = 0; i < ops_.ops.size(); ++i) {
      if (num_waits_[i] == 0) Start(static_cast<int32_t>(i));
    }
    while (true) {
      // Those that end at the same instant first, so that what follows them
      // does not slow them down.
      if (ends_.empty() || ends_.top().time_s > now_s_) Refresh();
      if (ends_.empty()) break;
      const End end = ends_.top();
      ends_.pop();
      if (end.version != active_[end.op].version) continue;  // Since put off.
      now_s_ = end.time_s;
      Finish(end.op);
    }
    times_.step_time_s = now_s_;
    return std::move(times_);
  }

 private:
  struct Active {
    double remaining_s = 0;  // Of an op alone.
    double slowdown = 1;
    double since_s = 0;
    int32_t version = 0;
  };
  struct Stage {
    int32_t num_computing = 0;
    int32_t num_flows = 0;
    std::vector<int32_t> active;  // Ops that this stage is a part of.
    bool is_dirty = false;
  };
  struct End {
    double time_s;
    int32_t op;
    int32_t version;
    friend bool operator>(const End& a, const End& b) {
      return std::pair(a.time_s, a.op) > std::pair(b.time_s, b.op);
    }
  };

  template <typename Visitor>
  void ForStages(int32_t op, Visitor visit) {
    visit(stages_[ops_.ops[op].stage]);
    if (ops_.ops[op].receiver >= 0) visit(stages_[ops_.ops[op].receiver]);
  }

  void Start(int32_t op) {
    times_.start_s[op] = now_s_;
    active_[op].remaining_s = ops_.ops[op].seconds;
    active_[op].since_s = now_s_;
    active_[op].slowdown = 0;  // Not known before all that starts has.
    ForStages(op, [&](Stage& stage) {
      ++(Computes(ops_.ops[op]) ? stage.num_computing : stage.num_flows);
      stage.active.push_back(op);
      MakeDirty(stage);
    });
  }

  void Finish(int32_t op) {
    times_.end_s[op] = now_s_;
    ++active_[op].version;
    ForStages(op, [&](Stage& stage) {
      --(Computes(ops_.ops[op]) ? stage.num_computing : stage.num_flows);
      stage.active.erase(
          std::find(stage.active.begin(), stage.active.end(), op));
      MakeDirty(stage);
    });
    for (int32_t i = follower_begin_[op]; i < follower_begin_[op + 1]; ++i) {
      if (--num_waits_[followers_[i]] == 0) Start(followers_[i]);
    }
  }

  void MakeDirty(Stage& stage) {
    if (stage.is_dirty) return;
    stage.is_dirty = true;
    dirty_.push_back(&stage);
  }

  double SlowdownOf(int32_t op) {
    if (Computes(ops_.ops[op])) {
      return stages_[ops_.ops[op].stage].num_flows > 0 ? overlap_.compute : 1;
    }
    bool meets_compute = false;
    ForStages(op, [&](const Stage& stage) {
      meets_compute = meets_compute || stage.num_computing > 0;
    });
    return meets_compute ? overlap_.communication : 1;
  }

  // Gives what is under way on stages that changed its new end.
  void Refresh() {
    for (Stage* stage : dirty_) {
      stage->is_dirty = false;
      for (const int32_t op : stage->active) {
        Active& active = active_[op];
        const double slowdown = SlowdownOf(op);
        if (slowdown == active.slowdown) continue;
        if (active.slowdown > 0) {
          active.remaining_s =
              std::max(0.0, active.remaining_s -
                                (now_s_ - active.since_s) / active.slowdown);
        }
        active.since_s = now_s_;
        active.slowdown = slowdown;
        ends_.push(
            {now_s_ + active.remaining_s * slowdown, op, ++active.version});
      }
    }
    dirty_.clear();
  }

  const ClusterOps& ops_;
  const OverlapFactors& overlap_;
  std::vector<Active> active_;
  std::vector<Stage> stages_;
  std::vector<Stage*> dirty_;
  std::vector<int32_t> num_waits_;
  std::vector<int32_t> follower_begin_;
  std::vector<int32_t> followers_;
  std::priority_queue<End, std::vector<End>, std::greater<>> ends_;
  OpTimes times_;
  double now_s_ = 0;
};

}  // namespace

OpTimes RunOps(const ClusterOps& ops, const OverlapFactors& overlap) {
  return overlap.compute == 1 && overlap.communication == 1
             ? RunSteadily(ops)
             : Engine(ops, overlap).Run();
}

ReplicaRun::ReplicaRun(const ClusterOps& ops, const OpTimes& alone,
                       int32_t num_stages, int32_t num_replicas)
    : ops_(ops),
      alone_(alone),
      num_stages_(num_stages),
      num_replicas_(num_replicas) {
  int32_t num_draws = 0;
  for (size_t i = 0; i < ops.ops.size(); ++i) {
    const ClusterOp& op = ops.ops[i];
    // Steady ops keep their exact seconds.
    const double elapsed_s = alone.end_s[i] - alone.start_s[i];
    seconds_.push_back(alone.end_s[i] == alone.start_s[i] + op.seconds
                           ? op.seconds
                           : elapsed_s);
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
    if (!IsOwn(ops.ops[i])) {
      for (const int32_t wait : ops.WaitsOf(i)) is_joined[wait] = true;
    }
    if (!ops.ops[i].is_pass()) continue;
    int32_t& current = last[ops.ops[i].stage];
    if (draw_[i] == -2) {
      draw_[i] = current;
    } else {
      current = draw_[i];
    }
  }
  for (size_t i = 0; i < ops.ops.size(); ++i) {
    if (is_joined[i] && IsOwn(ops.ops[i])) joined_.push_back(i);
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
    const ClusterOp& op = ops_.ops[i];
    double* const end = &end_s[i * kCount];
    if (!IsOwn(op)) {
      // Gathers follow each other from the start of the step; nothing else that
      // is common comes before a pass.
      std::fill(end, end + kCount,
                alone_.end_s[i] * FactorOf(disturbance.gathers, op.stage));
      continue;
    }
    double start[kCount] = {};
    for (const int32_t wait : ops_.WaitsOf(i)) {
      const double* const other = &end_s[static_cast<size_t>(wait) * kCount];
      for (int r = 0; r < kCount; ++r) start[r] = std::max(start[r], other[r]);
    }
    double seconds[kCount];
    std::fill(seconds, seconds + kCount, seconds_[i]);
    if (op.is_pass()) {
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
    const ClusterOp& op = ops_.ops[i];
    if (IsOwn(op)) continue;
    double start_s = 0;
    for (const int32_t wait : ops_.WaitsOf(i)) {
      start_s = std::max(start_s, times.common_end_s[wait]);
    }
    const double factor = op.kind == ClusterEventKind::kOptimizer
                              ? slowest[op.stage]
                          : op.kind == ClusterEventKind::kParameterGather
                              ? FactorOf(disturbance.gathers, op.stage)
                              : FactorOf(disturbance.reductions, op.stage);
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
    if (!IsOwn(ops_.ops[i])) {
      times.end_s[i] = step.common_end_s[i];
      continue;
    }
    times.start_s[i] = 0;
    for (const int32_t wait : ops_.WaitsOf(i)) {
      times.start_s[i] = std::max(times.start_s[i], times.end_s[wait]);
    }
  }
  return times;
}

}  // namespace millrace
