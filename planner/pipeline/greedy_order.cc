#include "planner/pipeline/greedy_order.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <queue>
#include <utility>

#include "base/check.h"

namespace millrace {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max() / 4;

struct ChunkState {
  int32_t num_forward = 0;  // Begun.
  int32_t num_input = 0;
  int32_t num_weight = 0;
  // By micro-batch: when what the pass needs is there.
  std::vector<double> forward_at, input_at;
};

struct StageState {
  std::vector<int32_t> chunks;  // Ascending.
  double free_s = 0;
  int64_t held = 0;  // After the pass under way.
  int64_t limit = kUnlimited;
  int64_t margin = 0;  // Bytes to keep free for input gradients.
  int32_t num_ahead = 0;
  int32_t num_put_off = 0;
  bool was_forward = false;  // The last pass but for weight gradients.
};

class Greedy {
 public:
  Greedy(const PipelineCosts& costs, const std::vector<int64_t>& memory_bytes,
         int32_t transfer_buffers, const ListPolicy& policy)
      : costs_(costs),
        policy_(policy),
        transfer_buffers_(transfer_buffers),
        num_chunks_(static_cast<int32_t>(costs.chunks.size())),
        chunks_(costs.chunks.size()),
        stages_(costs.num_stages),
        order_(costs.num_stages),
        keeps_groups_(policy.chunks == ChunkPriority::kGroups) {
    for (int32_t c = 0; c < num_chunks_; ++c) {
      const ChunkCosts& chunk = costs.chunks[c];
      chunks_[c].forward_at.assign(costs.num_microbatches,
                                   c == 0 ? 0.0 : kNever);
      chunks_[c].input_at.assign(costs.num_microbatches, kNever);
      StageState& stage = stages_[costs.stage_of_chunk[c]];
      stage.chunks.push_back(c);
      stage.margin = std::max(
          stage.margin, chunk.weight_gradient_bytes - chunk.activation_bytes);
    }
    for (size_t s = 0; s < memory_bytes.size(); ++s) {
      stages_[s].limit = std::min(memory_bytes[s], kUnlimited);
    }
  }

  PassOrder Run() && {
    RunAll(0);
    if (!IsDone()) {
      // Stages that keep to their groups wait for each other.
      keeps_groups_ = false;
      RunAll(last_wake_s_);
    }
    CHECK(IsDone()) << "greedy list scheduling stopped early";
    return std::move(order_);
  }

 private:
  void RunAll(double now_s) {
    for (int32_t s = 0; s < costs_.num_stages; ++s) Wake(now_s, s);
    while (!wakes_.empty()) {
      const auto [at_s, stage] = wakes_.top();
      wakes_.pop();
      last_wake_s_ = at_s;
      if (stages_[stage].free_s <= at_s) Decide(stage, at_s);
    }
  }

  bool IsDone() const {
    for (const ChunkState& chunk : chunks_) {
      if (chunk.num_weight < costs_.num_microbatches) return false;
    }
    return true;
  }

  void Wake(double at_s, int32_t stage) { wakes_.push({at_s, stage}); }

  bool IsOnOtherStage(int32_t chunk, int32_t other) const {
    return other >= 0 && other < num_chunks_ &&
           costs_.stage_of_chunk[other] != costs_.stage_of_chunk[chunk];
  }

  // Less is first.
  std::pair<int32_t, int32_t> PriorityOf(int32_t chunk, int32_t microbatch,
                                         bool is_forward) const {
    const int32_t depth = is_forward ? -chunk : chunk;
    switch (policy_.chunks) {
      case ChunkPriority::kDeepest:
        return {depth, microbatch};
      case ChunkPriority::kGroups:
        return {microbatch / costs_.num_stages, -depth};
      case ChunkPriority::kOldest:
        return {microbatch, depth};
    }
    return {0, 0};
  }

  // Whether the pass's stage of the next (previous) chunk lags too far behind.
  bool IsTooFarAhead(int32_t chunk, int32_t microbatch, bool is_forward) const {
    const int32_t to = chunk + (is_forward ? 1 : -1);
    if (transfer_buffers_ == 0 || !IsOnOtherStage(chunk, to)) return false;
    const int32_t begun =
        is_forward ? chunks_[to].num_forward : chunks_[to].num_input;
    return begun <= microbatch - transfer_buffers_;
  }

  // Whether after this forward pass all micro-batches under way can be finished
  // on this stage in order, its weight gradients done meanwhile, with this much
  // room for what `size_of` says each chunk takes.
  template <typename SizeOf>
  bool IsSafe(const StageState& stage, int32_t chunk, int64_t room,
              SizeOf size_of) const {
    room -= size_of(chunk);
    int64_t most_needed = 0;
    for (const int32_t c : stage.chunks) {
      room -= (chunks_[c].num_forward - chunks_[c].num_input) * size_of(c);
      most_needed += size_of(c);
    }
    if (room < 0) return false;
    if (stage.chunks.size() == 1 || room >= most_needed) return true;
    // A micro-batch goes through the first of the stage's chunks first, and
    // comes back through it last.
    const int32_t begin = chunks_[stage.chunks.front()].num_input;
    const int32_t end = std::max(chunks_[stage.chunks.front()].num_forward,
                                 chunks_[chunk].num_forward + 1);
    for (int32_t i = begin; i < end; ++i) {
      int64_t has = 0, needs = 0;
      for (const int32_t c : stage.chunks) {
        const ChunkState& state = chunks_[c];
        if (i >= state.num_forward + (c == chunk ? 1 : 0)) {
          needs += size_of(c);
        } else if (i >= state.num_input) {
          has += size_of(c);
        }
      }
      if (needs > room) return false;
      room += has;
    }
    return true;
  }

  bool MayStartForward(const StageState& stage, int32_t stage_idx,
                       int32_t chunk) const {
    const int32_t most = policy_.most_ahead[stage_idx];
    const auto num_all =
        static_cast<int32_t>(stage.chunks.size()) * costs_.num_microbatches;
    if (most < num_all &&
        !IsSafe(stage, chunk, most, [](int32_t) { return int64_t{1}; })) {
      return false;
    }
    return stage.limit == kUnlimited ||
           IsSafe(stage, chunk, stage.limit - stage.margin,
                  [&](int32_t c) { return costs_.chunks[c].activation_bytes; });
  }

  struct Choice {
    int32_t chunk = -1;  // None.
    int32_t microbatch = 0;
    double ready_s = kNever;  // When none is ready: the first that will be.
  };

  Choice FirstForward(const StageState& stage, int32_t stage_idx,
                      double now_s) const {
    Choice best;
    if (stage.num_ahead >= policy_.most_ahead[stage_idx]) return best;
    for (const int32_t c : stage.chunks) {
      const int32_t i = chunks_[c].num_forward;
      if (i == costs_.num_microbatches) continue;
      if (IsTooFarAhead(c, i, true)) continue;
      const double ready_s = chunks_[c].forward_at[i];
      if (ready_s == kNever && !keeps_groups_) continue;
      const Choice offer = {c, i, ready_s};
      if (IsBefore(offer, best, true, now_s) &&
          MayStartForward(stage, stage_idx, c)) {
        best = offer;
      }
    }
    return best;
  }

  Choice FirstInput(const StageState& stage, double now_s) const {
    Choice best;
    for (const int32_t c : stage.chunks) {
      const int32_t i = chunks_[c].num_input;
      if (i == costs_.num_microbatches) continue;
      const double ready_s = chunks_[c].input_at[i];
      if (ready_s == kNever && !keeps_groups_) continue;
      if (IsTooFarAhead(c, i, false)) continue;
      const Choice offer = {c, i, ready_s};
      if (IsBefore(offer, best, false, now_s)) best = offer;
    }
    return best;
  }

  bool IsBefore(const Choice& offer, const Choice& best, bool is_forward,
                double now_s) const {
    if (best.chunk < 0) return true;
    const bool is_ready = offer.ready_s <= now_s;
    if (!keeps_groups_) {
      if (is_ready != (best.ready_s <= now_s)) return is_ready;
      if (!is_ready) return offer.ready_s < best.ready_s;
    }
    return PriorityOf(offer.chunk, offer.microbatch, is_forward) <
           PriorityOf(best.chunk, best.microbatch, is_forward);
  }

  void Decide(int32_t stage_idx, double now_s) {
    StageState& stage = stages_[stage_idx];
    if (stage.num_put_off > policy_.most_put_off[stage_idx]) {
      return StartWeight(stage_idx, now_s);
    }
    const Choice input = FirstInput(stage, now_s);
    const bool has_input = input.ready_s <= now_s;
    const bool takes_input =
        has_input &&
        (policy_.preference == Preference::kBackward ||
         (policy_.preference == Preference::kAlternate && stage.was_forward));
    const Choice forward =
        takes_input ? Choice{} : FirstForward(stage, stage_idx, now_s);
    bool has_forward = forward.ready_s <= now_s;
    if (has_forward && !has_input && input.chunk >= 0 &&
        input.ready_s - now_s <
            policy_.patience * costs_.chunks[forward.chunk].forward_s) {
      has_forward = false;
    }
    if (has_forward || has_input) {
      const Choice& choice = has_forward ? forward : input;
      const ChunkCosts& chunk = costs_.chunks[choice.chunk];
      const int64_t more =
          has_forward ? chunk.activation_bytes
                      : chunk.weight_gradient_bytes - chunk.activation_bytes;
      if (more > 0 && stage.held + more > stage.limit) {
        return StartWeight(stage_idx, now_s);
      }
      return has_forward ? StartForward(stage_idx, choice, now_s)
                         : StartInput(stage_idx, choice, now_s);
    }
    if (stage.num_put_off == 0) return;
    const double next_s = std::min(forward.ready_s, input.ready_s);
    const int32_t c = OldestWeight(stage);
    const double weight_s = costs_.chunks[c].weight_gradient_s;
    if (now_s + weight_s <= next_s + policy_.overrun * weight_s) {
      StartWeight(stage_idx, now_s);
    }
  }

  int32_t OldestWeight(const StageState& stage) const {
    int32_t best = -1;
    for (const int32_t c : stage.chunks) {
      if (chunks_[c].num_weight == chunks_[c].num_input) continue;
      if (best < 0 || chunks_[c].num_weight < chunks_[best].num_weight) {
        best = c;
      }
    }
    CHECK(best >= 0) << "no weight gradient is put off";
    return best;
  }

  void Occupy(int32_t stage_idx, const ChunkPass& pass, double now_s,
              double seconds) {
    order_[stage_idx].push_back(pass);
    stages_[stage_idx].free_s = now_s + seconds;
    Wake(now_s + seconds, stage_idx);
  }

  // The result of a pass goes to `chunk`, or, beyond the last chunk, to the
  // chunk itself on its way back.
  void Deliver(int32_t from, int32_t chunk, double end_s, double* at) {
    const bool travels = IsOnOtherStage(from, chunk);
    *at = end_s + (travels ? costs_.transfer_s : 0);
    if (travels) Wake(*at, costs_.stage_of_chunk[chunk]);
  }
  // A stage that was held back because this chunk's lagged may go on.
  void WakeSender(int32_t chunk, int32_t sender, double now_s) {
    if (transfer_buffers_ > 0 && IsOnOtherStage(chunk, sender)) {
      Wake(now_s, costs_.stage_of_chunk[sender]);
    }
  }

  void StartForward(int32_t stage_idx, const Choice& choice, double now_s) {
    const auto [c, i, ready_s] = choice;
    StageState& stage = stages_[stage_idx];
    const double seconds = costs_.chunks[c].forward_s;
    ++chunks_[c].num_forward;
    ++stage.num_ahead;
    stage.was_forward = true;
    stage.held += costs_.chunks[c].activation_bytes;
    Occupy(stage_idx, {ChunkPassKind::kForward, c, i}, now_s, seconds);
    if (c + 1 < num_chunks_) {
      Deliver(c, c + 1, now_s + seconds, &chunks_[c + 1].forward_at[i]);
    } else {
      chunks_[c].input_at[i] = now_s + seconds;
    }
    WakeSender(c, c - 1, now_s);
  }

  void StartInput(int32_t stage_idx, const Choice& choice, double now_s) {
    const auto [c, i, ready_s] = choice;
    StageState& stage = stages_[stage_idx];
    const double seconds = costs_.chunks[c].input_gradient_s;
    ++chunks_[c].num_input;
    --stage.num_ahead;
    ++stage.num_put_off;
    stage.was_forward = false;
    stage.held += costs_.chunks[c].weight_gradient_bytes -
                  costs_.chunks[c].activation_bytes;
    Occupy(stage_idx, {ChunkPassKind::kInputGradient, c, i}, now_s, seconds);
    if (c > 0) {
      Deliver(c, c - 1, now_s + seconds, &chunks_[c - 1].input_at[i]);
    }
    WakeSender(c, c + 1, now_s);
  }

  void StartWeight(int32_t stage_idx, double now_s) {
    StageState& stage = stages_[stage_idx];
    const int32_t c = OldestWeight(stage);
    --stage.num_put_off;
    stage.held -= costs_.chunks[c].weight_gradient_bytes;
    Occupy(stage_idx,
           {ChunkPassKind::kWeightGradient, c, chunks_[c].num_weight++}, now_s,
           costs_.chunks[c].weight_gradient_s);
  }

  const PipelineCosts& costs_;
  const ListPolicy& policy_;
  const int32_t transfer_buffers_;
  const int32_t num_chunks_;
  std::vector<ChunkState> chunks_;
  std::vector<StageState> stages_;
  PassOrder order_;
  double last_wake_s_ = 0;
  bool keeps_groups_;  // Passes wait for their turn.
  using TimeAndStage = std::pair<double, int32_t>;
  std::priority_queue<TimeAndStage, std::vector<TimeAndStage>, std::greater<>>
      wakes_;
};

}  // namespace

PassOrder GreedyOrder(const PipelineCosts& costs,
                      const std::vector<int64_t>& memory_bytes,
                      int32_t transfer_buffers, const ListPolicy& policy) {
  return Greedy(costs, memory_bytes, transfer_buffers, policy).Run();
}

}  // namespace millrace
