#include "planner/simulate/pass_ops.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "planner/pipeline/order_times.h"
#include "planner/pipeline/pass_order.h"

namespace millrace {
namespace {

ClusterEventKind EventKindOf(ChunkPassKind kind) {
  switch (kind) {
    case ChunkPassKind::kForward:
      return ClusterEventKind::kForward;
    case ChunkPassKind::kBackward:
      return ClusterEventKind::kBackward;
    case ChunkPassKind::kInputGradient:
      return ClusterEventKind::kInputGradient;
    case ChunkPassKind::kWeightGradient:
      return ClusterEventKind::kWeightGradient;
  }
  return ClusterEventKind::kForward;
}

// Ops as they come to mind, before they are sorted.
class Builder {
 public:
  explicit Builder(const ClusterStep& step) : step_(step) {}

  absl::StatusOr<PassOps> Build() {
    RETURN_IF_ERROR(CheckStep());
    const size_t num_passes =
        step_.costs.chunks.size() * step_.costs.num_microbatches;
    forward_.assign(num_passes, -1);
    backward_.assign(num_passes, -1);
    arrival_.assign(num_passes, -1);
    gradient_arrival_.assign(num_passes, -1);
    lanes_.resize(step_.costs.num_stages);
    for (auto& lanes : lanes_) lanes.fill(-1);
    for (int32_t stage = 0; stage < step_.costs.num_stages; ++stage) {
      AddStage(stage);
    }
    JoinPasses();
    AddOptimizer();
    return Sort();
  }

 private:
  absl::Status CheckStep() const {
    RETURN_IF_ERROR(CheckCosts(step_.costs));
    RETURN_IF_ERROR(CheckOrder(step_.costs, step_.order));
    if (step_.ends.size() != 1 &&
        step_.ends.size() != static_cast<size_t>(step_.costs.num_stages)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "once-a-step work of ", step_.ends.size(), " stages for ",
          step_.costs.num_stages, "; give one for all, or each"));
    }
    if (step_.num_buckets < 1 || step_.num_replicas < 1 ||
        step_.ranks_per_pass < 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          step_.num_buckets, " buckets, ", step_.num_replicas, " replicas and ",
          step_.ranks_per_pass, " ranks a pass; each is at least 1"));
    }
    if (!(step_.data_hidden_share >= 0 && step_.data_hidden_share <= 1)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "data_hidden_share is from 0 to 1, found ", step_.data_hidden_share));
    }
    return absl::OkStatus();
  }

  const StepModel::StepEnds& EndsOf(int32_t stage) const {
    return step_.ends[step_.ends.size() == 1 ? 0 : stage];
  }
  size_t PassIdx(int32_t chunk, int32_t microbatch) const {
    return static_cast<size_t>(chunk) * step_.costs.num_microbatches +
           microbatch;
  }

  int32_t Add(const StepOp& op, const PassOp& what) {
    const auto id = static_cast<int32_t>(ops_.size());
    ops_.push_back(op);
    ops_.back().resource =
        what.is_pass() || what.kind == ClusterEventKind::kOptimizer
            ? OpResource::kCompute
            : OpResource::kNetwork;
    what_.push_back(what);
    waits_.emplace_back();
    int32_t& last = lanes_[op.stage][static_cast<int>(op.lane)];
    Wait(id, last);
    last = id;
    return id;
  }
  void Wait(int32_t op, int32_t for_op) {
    if (for_op >= 0) waits_[op].push_back(for_op);
  }

  void AddStage(int32_t stage) {
    const std::vector<ChunkPass>& passes = step_.order[stage];
    const StepModel::StepEnds& ends = EndsOf(stage);
    // Chunks by their first forward pass and by their last gradient.
    std::vector<int32_t> first_pass(step_.costs.chunks.size(), -1);
    std::vector<int32_t> last_pass(step_.costs.chunks.size(), -1);
    std::vector<int32_t> chunks;
    for (size_t i = 0; i < passes.size(); ++i) {
      int32_t& first = first_pass[passes[i].chunk_idx];
      if (first < 0) {
        first = static_cast<int32_t>(i);
        chunks.push_back(passes[i].chunk_idx);
      }
      last_pass[passes[i].chunk_idx] = static_cast<int32_t>(i);
    }
    const double per_bucket =
        step_.data_hidden_share /
        (static_cast<double>(chunks.size()) * step_.num_buckets);
    const double exposed_share = 1 - step_.data_hidden_share;
    const double gather_s = ends.parameter_gather_s;
    const double reduction_s = ends.gradient_reduction_s;
    const bool has_parts = step_.data_hidden_share > 0;
    const bool gathers = gather_s > 0;
    const bool reduces = reduction_s > 0;

    // The exposed one comes first, and all others are behind it.
    int32_t exposed_gather = -1;
    if (gathers && exposed_share > 0) {
      exposed_gather = AddGather(stage, -1, -1, exposed_share * gather_s);
    }
    std::vector<std::vector<int32_t>> gathered(step_.costs.chunks.size());
    for (const int32_t chunk : chunks) {
      for (int32_t b = 0; gathers && has_parts && b < step_.num_buckets; ++b) {
        gathered[chunk].push_back(
            AddGather(stage, chunk, b, per_bucket * gather_s));
      }
    }

    for (size_t i = 0; i < passes.size(); ++i) {
      const ChunkPass& pass = passes[i];
      const bool is_gathered =
          gathers && has_parts &&
          first_pass[pass.chunk_idx] == static_cast<int32_t>(i);
      const bool is_reduced =
          reduces && has_parts &&
          last_pass[pass.chunk_idx] == static_cast<int32_t>(i);
      const int32_t num_parts =
          is_gathered || is_reduced ? step_.num_buckets : 1;
      for (int32_t part = 0; part < num_parts; ++part) {
        const int32_t op = AddPass(stage, pass, part, num_parts);
        if (i == 0 && part == 0) Wait(op, exposed_gather);
        if (is_gathered) Wait(op, gathered[pass.chunk_idx][part]);
        if (is_reduced) {
          AddReduction(stage, pass.chunk_idx, part, per_bucket * reduction_s,
                       op);
        }
      }
    }
    if (reduces && exposed_share > 0) {
      AddReduction(stage, -1, -1, exposed_share * reduction_s,
                   lanes_[stage][static_cast<int>(Lane::kCompute)]);
    }
  }

  int32_t AddGather(int32_t stage, int32_t chunk, int32_t bucket,
                    double seconds) {
    return Add({.seconds = seconds, .stage = stage, .lane = Lane::kDataComm},
               {.kind = ClusterEventKind::kParameterGather,
                .chunk_idx = chunk,
                .bucket_idx = bucket});
  }

  void AddReduction(int32_t stage, int32_t chunk, int32_t bucket,
                    double seconds, int32_t after) {
    Wait(Add({.seconds = seconds, .stage = stage, .lane = Lane::kDataComm},
             {.kind = ClusterEventKind::kGradientReduction,
              .chunk_idx = chunk,
              .bucket_idx = bucket}),
         after);
  }

  // One of `num_parts` of a pass; the last hands on what the pass is for.
  int32_t AddPass(int32_t stage, const ChunkPass& pass, int32_t part,
                  int32_t num_parts) {
    const int32_t id = Add(
        {.seconds = SecondsOf(step_.costs, pass) / num_parts, .stage = stage},
        {.kind = EventKindOf(pass.kind),
         .chunk_idx = pass.chunk_idx,
         .microbatch_idx = pass.microbatch_idx,
         .bucket_idx = num_parts > 1 ? part : -1});
    const size_t idx = PassIdx(pass.chunk_idx, pass.microbatch_idx);
    const bool is_forward = pass.kind == ChunkPassKind::kForward;
    if (part == 0 && pass.kind != ChunkPassKind::kWeightGradient) {
      (is_forward ? forward_ : backward_)[idx] = id;
    }
    if (part + 1 < num_parts || pass.kind == ChunkPassKind::kWeightGradient) {
      return id;
    }
    const int32_t to = pass.chunk_idx + (is_forward ? 1 : -1);
    if (to >= 0 && to < static_cast<int32_t>(step_.costs.chunks.size())) {
      (is_forward ? arrival_
                  : gradient_arrival_)[PassIdx(to, pass.microbatch_idx)] =
          AddTransfer(id, to);
    }
    return id;
  }

  // Of what the pass `after` made to the stage of chunk `to`. Returns the op
  // after which it has arrived.
  int32_t AddTransfer(int32_t after, int32_t to) {
    const int32_t sender = ops_[after].stage;
    const int32_t receiver = step_.costs.stage_of_chunk[to];
    if (receiver == sender || step_.costs.transfer_s <= 0) return after;
    const bool is_forward = what_[after].kind == ClusterEventKind::kForward;
    const int32_t id =
        Add({.seconds = step_.costs.transfer_s,
             .stage = sender,
             .receiver = receiver,
             .lane = !step_.overlaps_transfers ? Lane::kCompute
                     : is_forward              ? Lane::kSendNext
                                               : Lane::kSendPrevious},
            {.kind = is_forward ? ClusterEventKind::kActivationTransfer
                                : ClusterEventKind::kGradientTransfer,
             .chunk_idx = what_[after].chunk_idx,
             .microbatch_idx = what_[after].microbatch_idx});
    Wait(id, after);
    return id;
  }

  void JoinPasses() {
    for (size_t i = 0; i < forward_.size(); ++i) {
      Wait(forward_[i], arrival_[i]);
      Wait(backward_[i], gradient_arrival_[i]);
    }
  }

  void AddOptimizer() {
    std::vector<int32_t> ends;
    for (const auto& lanes : lanes_) {
      for (const int32_t last : lanes) {
        if (last >= 0) ends.push_back(last);
      }
    }
    num_before_optimizer_ = ops_.size();
    for (int32_t stage = 0; stage < step_.costs.num_stages; ++stage) {
      const int32_t id =
          Add({.seconds = EndsOf(stage).optimizer_s, .stage = stage},
              {.kind = ClusterEventKind::kOptimizer});
      waits_[id] = ends;
    }
  }

  // By Kahn's method, first come first served.
  absl::StatusOr<PassOps> Sort() const {
    const size_t num_ops = ops_.size();
    std::vector<int32_t> num_waits(num_ops, 0);
    std::vector<std::vector<int32_t>> followers(num_ops);
    for (size_t i = 0; i < num_before_optimizer_; ++i) {
      num_waits[i] = static_cast<int32_t>(waits_[i].size());
      for (const int32_t wait : waits_[i]) {
        followers[wait].push_back(static_cast<int32_t>(i));
      }
    }
    std::vector<int32_t> order;
    order.reserve(num_ops);
    for (size_t i = 0; i < num_before_optimizer_; ++i) {
      if (num_waits[i] == 0) order.push_back(static_cast<int32_t>(i));
    }
    for (size_t i = 0; i < order.size(); ++i) {
      for (const int32_t follower : followers[order[i]]) {
        if (--num_waits[follower] == 0) order.push_back(follower);
      }
    }
    if (order.size() < num_before_optimizer_) return Deadlock(num_waits);
    for (size_t i = num_before_optimizer_; i < num_ops; ++i) {
      order.push_back(static_cast<int32_t>(i));
    }
    std::vector<int32_t> place(num_ops);
    for (size_t i = 0; i < num_ops; ++i) {
      place[order[i]] = static_cast<int32_t>(i);
    }
    PassOps sorted{.step = {.num_stages = step_.costs.num_stages}};
    StepOps& step = sorted.step;
    step.ops.reserve(num_ops);
    step.wait_begin.reserve(num_ops + 1);
    sorted.ops.reserve(num_ops);
    for (const int32_t op : order) {
      step.ops.push_back(ops_[op]);
      step.wait_begin.push_back(static_cast<int32_t>(step.waits.size()));
      for (const int32_t wait : waits_[op]) step.waits.push_back(place[wait]);
      sorted.ops.push_back(what_[op]);
    }
    step.wait_begin.push_back(static_cast<int32_t>(step.waits.size()));
    return sorted;
  }

  absl::Status Deadlock(const std::vector<int32_t>& num_waits) const {
    std::vector<std::string> stuck;
    std::vector<bool> is_named(step_.costs.num_stages, false);
    for (size_t i = 0; i < num_before_optimizer_; ++i) {
      if (num_waits[i] == 0 || is_named[ops_[i].stage]) continue;
      is_named[ops_[i].stage] = true;
      stuck.push_back(
          absl::StrCat("stage ", ops_[i].stage, " at ",
                       ClusterEventToString({.kind = what_[i].kind,
                                             .lane = ops_[i].lane,
                                             .chunk_idx = what_[i].chunk_idx}),
                       ", micro-batch ", what_[i].microbatch_idx));
    }
    return absl::InternalError(absl::StrCat("the order of passes deadlocks: ",
                                            absl::StrJoin(stuck, "; ")));
  }

  const ClusterStep& step_;
  std::vector<StepOp> ops_;
  std::vector<PassOp> what_;  // By op.
  std::vector<std::vector<int32_t>> waits_;
  // First part of each pass, and the op that brings what it starts from; by
  // PassIdx, -1 where there is none.
  std::vector<int32_t> forward_, backward_;
  std::vector<int32_t> arrival_, gradient_arrival_;
  std::vector<std::array<int32_t, kNumLanes>> lanes_;  // Last op, by stage.
  size_t num_before_optimizer_ = 0;
};

}  // namespace

absl::StatusOr<PassOps> PassOpsOf(const ClusterStep& step) {
  return Builder(step).Build();
}

}  // namespace millrace
