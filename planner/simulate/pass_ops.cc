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
    // Passes both ways and their transfers.
    const size_t num_ops = 4 * num_passes;
    ops_.reserve(num_ops);
    what_.reserve(num_ops);
    waits_.reserve(num_ops);
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
    bool hands_over = true;  // What the pass is for is there at its end,
    double delay_s = 0;      // and leaves so much later.
  };
  // The places of a chunk's passes of one kind in its stage's order.
  struct Places {
    int32_t first = -1;
    int32_t last = -1;
  };

  // In their order.
  std::vector<Part> PartsOf(int32_t stage) const {
    const std::vector<ChunkPass>& passes = step_.order[stage];
    std::vector<std::array<Places, kNumChunkPassKinds>> places(
        step_.costs.chunks.size());
    std::vector<int32_t> last_of_chunk(step_.costs.chunks.size(), -1);
    for (size_t i = 0; i < passes.size(); ++i) {
      Places& of_kind =
          places[passes[i].chunk_idx][static_cast<size_t>(passes[i].kind)];
      const auto place = static_cast<int32_t>(i);
      if (of_kind.first < 0) of_kind.first = place;
      of_kind.last = last_of_chunk[passes[i].chunk_idx] = place;
    }
    const auto num_chunks = static_cast<int32_t>(
        std::count_if(last_of_chunk.begin(), last_of_chunk.end(),
                      [](int32_t place) { return place >= 0; }));
    std::vector<Part> parts;
    parts.reserve(passes.size());
    for (size_t i = 0; i < passes.size(); ++i) {
      const ChunkPass& pass = passes[i];
      const auto place = static_cast<int32_t>(i);
      const Places& of_kind =
          places[pass.chunk_idx][static_cast<size_t>(pass.kind)];
      const bool is_first = of_kind.first == place;
      if (step_.parts.empty()) {
        AddEqualParts(pass, EndsOf(stage), num_chunks,
                      is_first && pass.kind == ChunkPassKind::kForward,
                      last_of_chunk[pass.chunk_idx] == place, &parts);
      } else {
        AddKnownParts(pass, is_first, of_kind.last == place, &parts);
      }
    }
    return parts;
  }

  // Cuts a pass into one part for each bucket that it gathers or reduces.
  void AddEqualParts(const ChunkPass& pass, const StepModel::StepEnds& ends,
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

  // Those of ClusterStep::parts between which something happens.
  void AddKnownParts(const ChunkPass& pass, bool is_first, bool is_last,
                     std::vector<Part>* parts) const {
    const ChunkParts& chunk = step_.parts[pass.chunk_idx];
    const std::vector<PassPart>& known =
        chunk.by_kind[static_cast<size_t>(pass.kind)].parts;
    const bool gathers = is_first || chunk.gathers_each;
    const bool reduces = is_last || chunk.reduces_each;
    const double seconds = SecondsOf(step_.costs, pass);
    const size_t begin = parts->size();
    const Part none{.pass = pass, .takes_over = false, .hands_over = false};
    Part part = none;
    for (size_t i = 0; i < known.size(); ++i) {
      part.seconds += known[i].share * seconds;
      if (gathers) part.gather_s += known[i].gather_s;
      if (reduces) part.reduction_s += known[i].reduction_s;
      part.takes_over = part.takes_over || known[i].takes_over;
      part.hands_over = known[i].hands_over;
      part.delay_s = known[i].delay_s;
      if (i + 1 < known.size() && !part.hands_over && part.reduction_s == 0 &&
          !known[i + 1].takes_over && !(gathers && known[i + 1].gather_s > 0)) {
        continue;
      }
      parts->push_back(part);
      const int32_t next = part.part_idx + 1;
      part = none;
      part.part_idx = next;
    }
    for (size_t i = begin; i < parts->size(); ++i) {
      (*parts)[i].num_parts = part.part_idx;
    }
  }

  void AddStage(int32_t stage) {
    const std::vector<Part> parts = PartsOf(stage);
    const StepModel::StepEnds& ends = EndsOf(stage);
    const double exposed_share =
        step_.parts.empty() ? 1 - step_.data_hidden_share : 0;
    // The exposed one comes first, and all others are behind it.
    int32_t exposed_gather = -1;
    if (ends.parameter_gather_s > 0 && exposed_share > 0) {
      exposed_gather =
          AddGather(stage, -1, -1, exposed_share * ends.parameter_gather_s);
    }
    std::vector<size_t> gathering;
    for (size_t i = 0; i < parts.size(); ++i) {
      if (parts[i].gather_s > 0) gathering.push_back(i);
    }
    std::vector<int32_t> gathers(parts.size(), -1);
    size_t num_gathers = 0;
    const auto add_gather = [&](int32_t after) {
      if (num_gathers == gathering.size()) return;
      const size_t i = gathering[num_gathers++];
      gathers[i] = AddGather(stage, parts[i].pass.chunk_idx, parts[i].part_idx,
                             parts[i].gather_s);
      Wait(gathers[i], after);
    };
    // Where passes gather anew, one bucket ahead of use; else all from the
    // start of the step on.
    const bool is_ahead_by_one =
        !step_.parts.empty() &&
        step_.parts[parts.front().pass.chunk_idx].gathers_each;
    do {
      add_gather(-1);
    } while (!is_ahead_by_one && num_gathers < gathering.size());
    int32_t before = -1;
    for (size_t i = 0; i < parts.size(); ++i) {
      if (parts[i].gather_s > 0) add_gather(before);
      const int32_t op = AddPart(stage, parts[i]);
      if (i == 0) Wait(op, exposed_gather);
      Wait(op, gathers[i]);
      if (parts[i].reduction_s > 0) {
        AddReduction(stage, parts[i].pass.chunk_idx, parts[i].part_idx,
                     parts[i].reduction_s, op);
      }
      before = op;
    }
    if (ends.gradient_reduction_s > 0 && exposed_share > 0) {
      AddReduction(stage, -1, -1, exposed_share * ends.gradient_reduction_s,
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

  int32_t AddPart(int32_t stage, const Part& part) {
    const ChunkPass& pass = part.pass;
    StepOp op{.seconds = part.seconds, .stage = stage};
    if (!step_.parts.empty()) {
      const KindParts& kind =
          step_.parts[pass.chunk_idx].by_kind[static_cast<size_t>(pass.kind)];
      op.slowdown = static_cast<float>(kind.slowdown);
      op.busy_share = static_cast<float>(kind.busy_share);
    }
    const int32_t id =
        Add(op, {.kind = EventKindOf(pass.kind),
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
          AddTransfer(id, to, part.delay_s);
    }
    return id;
  }

  // Sends the result of the pass `after` to the stage of chunk `to`. Returns the
  // op at whose end it has arrived.
  int32_t AddTransfer(int32_t after, int32_t to, double delay_s) {
    const int32_t sender = ops_[after].stage;
    const int32_t receiver = step_.costs.stage_of_chunk[to];
    if (receiver == sender || step_.costs.transfer_s <= 0) return after;
    const bool is_forward = what_[after].kind == ClusterEventKind::kForward;
    const PassOp what{.kind = is_forward ? ClusterEventKind::kActivationTransfer
                                         : ClusterEventKind::kGradientTransfer,
                      .chunk_idx = what_[after].chunk_idx,
                      .microbatch_idx = what_[after].microbatch_idx};
    StepOp transfer{.seconds = step_.costs.transfer_s,
                    .stage = sender,
                    .receiver = receiver,
                    .lane = !step_.overlaps_transfers ? Lane::kCompute
                            : is_forward              ? Lane::kSendNext
                                                      : Lane::kSendPrevious};
    if (delay_s > 0) {
      StepOp delay = transfer;
      delay.seconds = delay_s;
      const int32_t id = Add(delay, what);
      ops_[id].resource = OpResource::kHost;
      Wait(id, after);
      after = id;
    }
    const int32_t id = Add(transfer, what);
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
