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

class Builder {
 public:
  explicit Builder(const PassStep& step)
      : step_(step), list_(step.costs.num_stages) {}

  absl::StatusOr<PassOps> Build() {
    RETURN_IF_ERROR(CheckStep());
    const size_t num_passes =
        step_.costs.chunks.size() * step_.costs.num_microbatches;
    // Passes both ways and their transfers.
    list_.Reserve(4 * num_passes);
    forward_.assign(num_passes, -1);
    backward_.assign(num_passes, -1);
    arrival_.assign(num_passes, -1);
    gradient_arrival_.assign(num_passes, -1);
    for (int32_t stage = 0; stage < step_.costs.num_stages; ++stage) {
      AddStage(stage);
    }
    JoinPasses();
    AddOptimizer();
    return list_.Sorted();
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

  // A part of a pass: it may wait for a bucket of parameters and be followed by
  // one of gradients.
  struct Part {
    ChunkPass pass;
    int32_t part_idx = 0;
    int32_t num_parts = 1;
    double seconds = 0;
    double gather_s = 0;
    double reduction_s = 0;
    bool takes_over = true;  // It needs what the neighbouring chunk sends.
    bool hands_over = true;  // The pass's result is ready at its end.
  };
  // In their order.
  std::vector<Part> PartsOf(int32_t stage) const {
    const std::vector<ChunkPass>& passes = step_.order[stage];
    std::vector<int32_t> first_forward(step_.costs.chunks.size(), -1);
    std::vector<int32_t> last_of_chunk(step_.costs.chunks.size(), -1);
    for (size_t i = 0; i < passes.size(); ++i) {
      const int32_t chunk = passes[i].chunk_idx;
      const auto place = static_cast<int32_t>(i);
      if (passes[i].kind == ChunkPassKind::kForward &&
          first_forward[chunk] < 0) {
        first_forward[chunk] = place;
      }
      last_of_chunk[chunk] = place;
    }
    const auto num_chunks = static_cast<int32_t>(
        std::count_if(last_of_chunk.begin(), last_of_chunk.end(),
                      [](int32_t place) { return place >= 0; }));
    std::vector<Part> parts;
    parts.reserve(passes.size());
    for (size_t i = 0; i < passes.size(); ++i) {
      const auto place = static_cast<int32_t>(i);
      AddParts(passes[i], EndsOf(stage), num_chunks,
               first_forward[passes[i].chunk_idx] == place,
               last_of_chunk[passes[i].chunk_idx] == place, &parts);
    }
    return parts;
  }

  // Cuts a pass into one part for each bucket that it gathers or reduces.
  void AddParts(const ChunkPass& pass, const StepModel::StepEnds& ends,
                int32_t num_chunks, bool is_gathered, bool is_reduced,
                std::vector<Part>* parts) const {
    const double per_bucket =
        step_.data_hidden_share /
        (static_cast<double>(num_chunks) * step_.num_buckets);
    Part part{.pass = pass};
    if (is_gathered) part.gather_s = per_bucket * ends.parameter_gather_s;
    if (is_reduced) part.reduction_s = per_bucket * ends.gradient_reduction_s;
    if (part.gather_s > 0 || part.reduction_s > 0) {
      part.num_parts = step_.num_buckets;
    }
    part.seconds = SecondsOf(step_.costs, pass) / part.num_parts;
    for (; part.part_idx < part.num_parts; ++part.part_idx) {
      part.takes_over = part.part_idx == 0;
      part.hands_over = part.part_idx + 1 == part.num_parts;
      parts->push_back(part);
    }
  }

  void AddStage(int32_t stage) {
    const std::vector<Part> parts = PartsOf(stage);
    const StepModel::StepEnds& ends = EndsOf(stage);
    const double exposed_share = 1 - step_.data_hidden_share;
    // The exposed one comes first, and all others are behind it.
    int32_t exposed_gather = -1;
    if (ends.parameter_gather_s > 0 && exposed_share > 0) {
      exposed_gather =
          AddGather(stage, -1, -1, exposed_share * ends.parameter_gather_s);
    }
    std::vector<int32_t> gathers(parts.size(), -1);
    for (size_t i = 0; i < parts.size(); ++i) {
      if (parts[i].gather_s <= 0) continue;
      gathers[i] = AddGather(stage, parts[i].pass.chunk_idx, parts[i].part_idx,
                             parts[i].gather_s);
    }
    for (size_t i = 0; i < parts.size(); ++i) {
      const int32_t op = AddPart(stage, parts[i]);
      if (i == 0) list_.Wait(op, exposed_gather);
      list_.Wait(op, gathers[i]);
      if (parts[i].reduction_s > 0) {
        AddReduction(stage, parts[i].pass.chunk_idx, parts[i].part_idx,
                     parts[i].reduction_s, op);
      }
    }
    if (ends.gradient_reduction_s > 0 && exposed_share > 0) {
      AddReduction(stage, -1, -1, exposed_share * ends.gradient_reduction_s,
                   list_.LastOf(stage, Lane::kCompute));
    }
  }

  int32_t AddGather(int32_t stage, int32_t chunk, int32_t bucket,
                    double seconds) {
    return Add({.seconds = seconds, .stage = stage, .lane = Lane::kDataComm},
               {.kind = PassEventKind::kParameterGather,
                .chunk_idx = chunk,
                .bucket_idx = bucket});
  }

  void AddReduction(int32_t stage, int32_t chunk, int32_t bucket,
                    double seconds, int32_t after) {
    list_.Wait(
        Add({.seconds = seconds, .stage = stage, .lane = Lane::kDataComm},
            {.kind = PassEventKind::kGradientReduction,
             .chunk_idx = chunk,
             .bucket_idx = bucket}),
        after);
  }

  int32_t Add(StepOp op, const PassOp& what) {
    op.resource = what.is_pass() || what.kind == PassEventKind::kOptimizer
                      ? OpResource::kCompute
                      : OpResource::kNetwork;
    return list_.Add(op, what);
  }

  int32_t AddPart(int32_t stage, const Part& part) {
    const ChunkPass& pass = part.pass;
    const int32_t id =
        Add({.seconds = part.seconds, .stage = stage},
            {.kind = EventKindOf(pass.kind),
             .chunk_idx = pass.chunk_idx,
             .microbatch_idx = pass.microbatch_idx,
             .bucket_idx = part.num_parts > 1 ? part.part_idx : -1});
    if (pass.kind == ChunkPassKind::kWeightGradient) return id;
    const size_t idx = PassIdx(pass.chunk_idx, pass.microbatch_idx);
    const bool is_forward = pass.kind == ChunkPassKind::kForward;
    if (part.takes_over) (is_forward ? forward_ : backward_)[idx] = id;
    const int32_t to = pass.chunk_idx + (is_forward ? 1 : -1);
    if (part.hands_over && to >= 0 &&
        to < static_cast<int32_t>(step_.costs.chunks.size())) {
      (is_forward ? arrival_
                  : gradient_arrival_)[PassIdx(to, pass.microbatch_idx)] =
          AddTransfer(id, to);
    }
    return id;
  }

  // Sends the result of the pass `after` to the stage of chunk `to`. Returns
  // the op at whose end it has arrived.
  int32_t AddTransfer(int32_t after, int32_t to) {
    const int32_t sender = list_.step_op(after).stage;
    const int32_t receiver = step_.costs.stage_of_chunk[to];
    if (receiver == sender || step_.costs.transfer_s <= 0) return after;
    const PassOp pass = list_.what(after);
    const bool is_forward = pass.kind == PassEventKind::kForward;
    const int32_t id =
        Add({.seconds = step_.costs.transfer_s,
             .stage = sender,
             .receiver = receiver,
             .lane = !step_.overlaps_transfers ? Lane::kCompute
                     : is_forward              ? Lane::kSendNext
                                               : Lane::kSendPrevious},
            {.kind = is_forward ? PassEventKind::kActivationTransfer
                                : PassEventKind::kGradientTransfer,
             .chunk_idx = pass.chunk_idx,
             .microbatch_idx = pass.microbatch_idx});
    list_.Wait(id, after);
    return id;
  }

  void JoinPasses() {
    for (size_t i = 0; i < forward_.size(); ++i) {
      list_.Wait(forward_[i], arrival_[i]);
      list_.Wait(backward_[i], gradient_arrival_[i]);
    }
  }

  void AddOptimizer() {
    std::vector<int32_t> ends;
    for (int32_t stage = 0; stage < step_.costs.num_stages; ++stage) {
      for (int lane = 0; lane < kNumLanes; ++lane) {
        const int32_t last = list_.LastOf(stage, static_cast<Lane>(lane));
        if (last >= 0) ends.push_back(last);
      }
    }
    for (int32_t stage = 0; stage < step_.costs.num_stages; ++stage) {
      const int32_t id =
          Add({.seconds = EndsOf(stage).optimizer_s, .stage = stage},
              {.kind = PassEventKind::kOptimizer});
      list_.WaitOnlyFor(id, ends);
    }
  }

  const PassStep& step_;
  PassOpList list_;
  // First part of each pass, and the op that brings what it starts from; by
  // PassIdx, -1 where there is none.
  std::vector<int32_t> forward_, backward_;
  std::vector<int32_t> arrival_, gradient_arrival_;
};

}  // namespace

PassEventKind EventKindOf(ChunkPassKind kind) {
  switch (kind) {
    case ChunkPassKind::kForward:
      return PassEventKind::kForward;
    case ChunkPassKind::kBackward:
      return PassEventKind::kBackward;
    case ChunkPassKind::kInputGradient:
      return PassEventKind::kInputGradient;
    case ChunkPassKind::kWeightGradient:
      return PassEventKind::kWeightGradient;
  }
  return PassEventKind::kForward;
}

PassOpList::PassOpList(int32_t num_stages) : lanes_(num_stages) {
  for (auto& lanes : lanes_) lanes.fill(-1);
}

void PassOpList::Reserve(size_t num_ops) {
  ops_.reserve(num_ops);
  what_.reserve(num_ops);
  waits_.reserve(num_ops);
}

int32_t PassOpList::Add(const StepOp& op, const PassOp& what) {
  const auto id = static_cast<int32_t>(ops_.size());
  ops_.push_back(op);
  what_.push_back(what);
  waits_.emplace_back();
  int32_t& last = lanes_[op.stage][static_cast<int>(op.lane)];
  Wait(id, last);
  last = id;
  return id;
}

void PassOpList::Wait(int32_t op, int32_t for_op) {
  if (for_op >= 0) waits_[op].push_back(for_op);
}

// By Kahn's method, first come first served.
absl::StatusOr<PassOps> PassOpList::Sorted() const {
  const size_t num_ops = ops_.size();
  std::vector<int32_t> num_waits(num_ops, 0);
  std::vector<std::vector<int32_t>> followers(num_ops);
  for (size_t i = 0; i < num_ops; ++i) {
    num_waits[i] = static_cast<int32_t>(waits_[i].size());
    for (const int32_t wait : waits_[i]) {
      followers[wait].push_back(static_cast<int32_t>(i));
    }
  }
  std::vector<int32_t> order;
  order.reserve(num_ops);
  for (size_t i = 0; i < num_ops; ++i) {
    if (num_waits[i] == 0) order.push_back(static_cast<int32_t>(i));
  }
  for (size_t i = 0; i < order.size(); ++i) {
    for (const int32_t follower : followers[order[i]]) {
      if (--num_waits[follower] == 0) order.push_back(follower);
    }
  }
  if (order.size() < num_ops) return Deadlock(num_waits);
  std::vector<int32_t> place(num_ops);
  for (size_t i = 0; i < num_ops; ++i) {
    place[order[i]] = static_cast<int32_t>(i);
  }
  PassOps sorted{.step = {.num_stages = static_cast<int32_t>(lanes_.size())}};
  StepOps& step = sorted.step;
  step.ops.reserve(num_ops);
  step.wait_begin.reserve(num_ops + 1);
  sorted.ops.reserve(num_ops);
  for (const int32_t op : order) {
    step.ops.push_back(ops_[op]);
    int32_t& carries = step.ops.back().carries;
    if (carries >= 0) carries = place[carries];
    step.wait_begin.push_back(static_cast<int32_t>(step.waits.size()));
    for (const int32_t wait : waits_[op]) step.waits.push_back(place[wait]);
    sorted.ops.push_back(what_[op]);
  }
  step.wait_begin.push_back(static_cast<int32_t>(step.waits.size()));
  return sorted;
}

absl::Status PassOpList::Deadlock(const std::vector<int32_t>& num_waits) const {
  std::vector<std::string> stuck;
  std::vector<bool> is_named(lanes_.size(), false);
  for (size_t i = 0; i < ops_.size(); ++i) {
    if (num_waits[i] == 0 || is_named[ops_[i].stage] ||
        what_[i].kind == PassEventKind::kOptimizer) {
      continue;
    }
    is_named[ops_[i].stage] = true;
    stuck.push_back(
        absl::StrCat("stage ", ops_[i].stage, " at ",
                     PassEventToString({.kind = what_[i].kind,
                                        .lane = ops_[i].lane,
                                        .chunk_idx = what_[i].chunk_idx}),
                     ", micro-batch ", what_[i].microbatch_idx));
  }
  return absl::InternalError(absl::StrCat("the order of passes deadlocks: ",
                                          absl::StrJoin(stuck, "; ")));
}

absl::StatusOr<PassOps> PassOpsOf(const PassStep& step) {
  if (step.ops != nullptr) return *step.ops;
  return Builder(step).Build();
}

}  // namespace millrace
