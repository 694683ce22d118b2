#include "planner/pipeline/improved_order.h"

#include <algorithm>

#include "planner/pipeline/order_times.h"

namespace millrace {
namespace {

// The goal to minimize: first the end of the pipeline, then the sum of the ends
// of all stages.
struct Goal {
  double makespan_s;
  double stage_ends_s;
  // Less by more than rounding.
  bool IsBetterThan(const Goal& other) const {
    constexpr double kRounding = 1e-9;
    if (makespan_s < other.makespan_s * (1 - kRounding)) return true;
    return makespan_s <= other.makespan_s &&
           stage_ends_s < other.stage_ends_s * (1 - kRounding);
  }
};

Goal GoalOf(const OrderTimes& times) {
  Goal goal{.makespan_s = times.makespan_s, .stage_ends_s = 0};
  for (const auto& passes : times.passes) {
    if (!passes.empty()) goal.stage_ends_s += passes.back().end_s;
  }
  return goal;
}

// Passes [begin, end) of a stage, one right after the other on the critical
// path.
struct Run {
  int32_t stage;
  size_t begin, end;
};

class Improver {
 public:
  Improver(const PipelineCosts& costs, const std::vector<int64_t>& memory_bytes,
           int32_t transfer_buffers, PassOrder* order)
      : costs_(costs),
        memory_bytes_(memory_bytes),
        timer_(costs, transfer_buffers),
        order_(*order) {
    for (const auto& passes : order_) num_passes_ += passes.size();
  }

  void Improve(double target_s, int64_t work) {
    timer_.Run(order_);
    Goal best = GoalOf(timer_.times());
    while (work > 0 && best.makespan_s > target_s) {
      bool has_moved = false;
      for (const Run& run : CriticalRuns()) {
        if (TryMoves(run, &best, &work)) {
          has_moved = true;
          break;
        }
      }
      if (!has_moved) return;
    }
  }

 private:
  struct Place {
    int32_t stage;
    size_t idx;
  };

  // Backwards from the pass that ends last, the latest run first.
  std::vector<Run> CriticalRuns() const {
    const OrderTimes& times = timer_.times();
    Place at{.stage = 0, .idx = 0};
    for (int32_t s = 0; s < costs_.num_stages; ++s) {
      if (!times.passes[s].empty() &&
          times.passes[s].back().end_s == times.makespan_s) {
        at = {.stage = s, .idx = times.passes[s].size() - 1};
      }
    }
    std::vector<Run> runs;
    while (true) {
      Run run{.stage = at.stage, .begin = at.idx, .end = at.idx + 1};
      while (run.begin > 0 && times.passes[at.stage][run.begin - 1].end_s ==
                                  times.passes[at.stage][run.begin].start_s) {
        --run.begin;
      }
      if (run.end - run.begin > 1) runs.push_back(run);
      if (!FindCause({.stage = at.stage, .idx = run.begin}, &at)) return runs;
    }
  }

  // The pass whose result came just when this one started.
  bool FindCause(Place place, Place* cause) const {
    const ChunkPass& pass = order_[place.stage][place.idx];
    const double start_s =
        timer_.times().passes[place.stage][place.idx].start_s;
    if (pass.kind == ChunkPassKind::kWeightGradient || start_s <= 0) {
      return false;
    }
    const bool is_forward = pass.kind == ChunkPassKind::kForward;
    const int32_t chunk = pass.chunk_idx + (is_forward ? -1 : 1);
    if (chunk < 0 || chunk >= static_cast<int32_t>(costs_.chunks.size())) {
      return false;
    }
    const int32_t stage = costs_.stage_of_chunk[chunk];
    const auto& passes = order_[stage];
    for (size_t i = 0; i < passes.size(); ++i) {
      if (passes[i].chunk_idx == chunk && passes[i].kind == pass.kind &&
          passes[i].microbatch_idx == pass.microbatch_idx) {
        *cause = {.stage = stage, .idx = i};
        return timer_.times().passes[stage][i].start_s < start_s;
      }
    }
    return false;
  }

  // Takes the first that helps.
  bool TryMoves(const Run& run, Goal* best, int64_t* work) {
    for (size_t i = run.begin; i < run.end; ++i) {
      if (i + 1 < run.end && TryMove(run.stage, i, run.end - 1, best, work)) {
        return true;
      }
      if (i > run.begin && TryMove(run.stage, i, run.begin, best, work)) {
        return true;
      }
      if (i + 2 < run.end && TryMove(run.stage, i, i + 1, best, work)) {
        return true;
      }
    }
    return false;
  }

  // The pass at `from` to `to`, or as near as its chunk's passes let it come.
  bool TryMove(int32_t stage, size_t from, size_t to, Goal* best,
               int64_t* work) {
    if (*work <= 0) return false;
    std::vector<ChunkPass>& passes = order_[stage];
    const size_t step = to > from ? 1 : -1;
    size_t place = from;
    while (place != to && MayPass(passes[from], passes[place + step])) {
      place += step;
    }
    if (place == from) return false;
    Rotate(passes, from, place);
    if (memory_bytes_.empty() ||
        PeakBytes(costs_, passes) <= memory_bytes_[stage]) {
      *work -= num_passes_;
      if (timer_.Run(order_)) {
        const Goal goal = GoalOf(timer_.times());
        if (goal.IsBetterThan(*best)) {
          *best = goal;
          return true;
        }
      }
    } else {
      *work -= static_cast<int64_t>(passes.size());
    }
    Rotate(passes, place, from);
    return false;
  }

  static bool MayPass(const ChunkPass& a, const ChunkPass& b) {
    return a.chunk_idx != b.chunk_idx ||
           (a.kind != b.kind && a.microbatch_idx != b.microbatch_idx);
  }

  static void Rotate(std::vector<ChunkPass>& passes, size_t from, size_t to) {
    const auto begin = passes.begin();
    if (from < to) {
      std::rotate(begin + from, begin + from + 1, begin + to + 1);
    } else {
      std::rotate(begin + to, begin + from, begin + from + 1);
    }
  }

  const PipelineCosts& costs_;
  const std::vector<int64_t>& memory_bytes_;
  OrderTimer timer_;
  PassOrder& order_;
  int64_t num_passes_ = 0;
};

}  // namespace

void ImproveOrder(const PipelineCosts& costs,
                  const std::vector<int64_t>& memory_bytes,
                  int32_t transfer_buffers, double target_s, int64_t work,
                  PassOrder* order) {
  Improver(costs, memory_bytes, transfer_buffers, order)
      .Improve(target_s, work);
}

}  // namespace millrace
