#include "planner/lower/lower.h"

#include <algorithm>
#include <array>
#include <deque>
#include <iterator>
#include <map>
#include <stop_token>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/parallel.h"
#include "base/status_macros.h"
#include "planner/job/executable.h"
#include "planner/lower/arena.h"
#include "planner/lower/common_order.h"
#include "planner/lower/graph.h"
#include "planner/lower/program_size.h"
#include "planner/lower/waits.h"
#include "planner/pipeline/layout_order.h"
#include "planner/pipeline/pass_order.h"
#include "planner/program/happens_before.h"

namespace millrace {
namespace {

constexpr int32_t kWholeStep = -1;  // As microbatch_idx.

void ClearAccumulate(OpAttributes& attributes) {
  std::visit(
      [](auto& a) {
        if constexpr (requires { a.accumulate; }) a.accumulate = false;
      },
      attributes);
}

// Turns Graph ops into instructions one after the other; waits follow from what
// they touch, offsets from what is alive when all are known.
class Lowering {
 public:
  // `passes` in the order in which the stage runs them.
  Lowering(const Graph& graph, ProgramKind kind, const Layout& layout,
           int32_t stage, std::vector<ChunkPass> passes, std::stop_token stop)
      : graph_(graph),
        stop_(std::move(stop)),
        passes_(std::move(passes)),
        num_microbatches_(NumMicrobatches(passes_)),
        program_{.kind = kind,
                 .layout = layout,
                 .stage = stage,
                 .parameters = graph.parameters},
        buffer_of_tensor_(graph.tensors.size(), -1),
        buffer_of_step_(graph.tensors.size(), -1),
        dependencies_(AddPersistentBuffers()) {}

  absl::StatusOr<Program> Run() && {
    Reserve();
    EmitAll(graph_.prologue);
    buffer_of_microbatch_.assign(
        num_microbatches_, std::vector<BufferId>(graph_.tensors.size(), -1));
    for (size_t i = 0; i < passes_.size(); ++i) {
      RETURN_IF_ERROR(CheckNotStopped(stop_));
      if (passes_[i].kind == ChunkPassKind::kWeightGradient) {
        EmitWeightGradients(passes_[i].microbatch_idx);
      } else {
        EmitPass(passes_[i],
                 i + 1 < passes_.size() ? &passes_[i + 1] : nullptr);
      }
    }
    FinishReductions(0);
    EmitAll(graph_.epilogue);
    PlaceStepBuffers();
    RETURN_IF_ERROR(CheckNotStopped(stop_));
    return std::move(program_);
  }

 private:
  // A micro-batch's gradients of one bucket on their way to their shard, or
  // those of the step that are reduced in bf16.
  struct Reduction {
    int32_t microbatch_idx;
    InstructionId communication = -1;  // The last.
    // Ops that compute with what was communicated, and what follows on them.
    std::vector<const GraphOp*> afterwards;
  };

  static int32_t NumMicrobatches(const std::vector<ChunkPass>& passes) {
    return static_cast<int32_t>(
        std::ranges::count(passes, ChunkPassKind::kForward, &ChunkPass::kind));
  }

  // Vectors that grow would move all their elements several times.
  void Reserve() {
    size_t num_instructions = graph_.prologue.size() + graph_.epilogue.size();
    for (const ChunkPass& pass : passes_) {
      // OpsOf() an input-gradient pass counts its weight gradients already.
      if (pass.kind == ChunkPassKind::kWeightGradient) continue;
      num_instructions += OpsOf(pass.kind).size();
    }
    const size_t num_reductions =
        program_.layout.shards_gradients() ? num_microbatches_ : 1;
    for (const std::vector<GraphOp>& ops : graph_.reduce_by_bucket) {
      num_instructions += num_reductions * ops.size();
    }
    program_.instructions.reserve(num_instructions);
    order_.Reserve(num_instructions);
    program_.buffers.reserve(num_microbatches_ * graph_.tensors.size());
  }

  const std::vector<GraphOp>& OpsOf(ChunkPassKind kind) const {
    return kind == ChunkPassKind::kForward ? graph_.forward : graph_.backward;
  }

  std::vector<Buffer> AddPersistentBuffers() {
    for (size_t i = 0; i < graph_.tensors.size(); ++i) {
      const GraphTensor& tensor = graph_.tensors[i];
      if (tensor.persistent_offset_bytes == kStepTensor) continue;
      buffer_of_tensor_[i] = static_cast<BufferId>(program_.buffers.size());
      program_.buffers.push_back(
          {.name = tensor.name,
           .dtype = tensor.dtype,
           .dims = {tensor.dims.begin(), tensor.dims.end()},
           .arena = Arena::kPersistent,
           .offset_bytes = tensor.persistent_offset_bytes,
           .bytes = tensor.bytes()});
    }
    auto buffer = [&](TensorId id) {
      return id < 0 ? BufferId{-1} : buffer_of_tensor_[id];
    };
    program_.parameters_buffer = buffer(graph_.persistent.parameters);
    program_.gradients_buffer = buffer(graph_.persistent.gradients);
    program_.exp_avg_buffer = buffer(graph_.persistent.exp_avg);
    program_.exp_avg_sq_buffer = buffer(graph_.persistent.exp_avg_sq);
    program_.scalars_buffer = buffer(graph_.persistent.scalars);
    program_.master_buffer = buffer(graph_.persistent.master);
    program_.norms_buffer = buffer(graph_.persistent.norms);
    program_.float8_weights_buffer = buffer(graph_.persistent.float8_weights);
    program_.scratch_buffer = buffer(graph_.persistent.scratch);
    program_.answers_buffer = buffer(graph_.persistent.answers);
    program_.persistent_arena_bytes = graph_.persistent.bytes;
    return program_.buffers;
  }

  BufferId BufferOf(TensorId id, int32_t microbatch_idx) {
    if (buffer_of_tensor_[id] >= 0) return buffer_of_tensor_[id];
    const bool is_of_microbatch = microbatch_idx != kWholeStep;
    BufferId& buffer = (is_of_microbatch ? buffer_of_microbatch_[microbatch_idx]
                                         : buffer_of_step_)[id];
    if (buffer < 0) {
      const GraphTensor& tensor = graph_.tensors[id];
      const BufferId parent =
          tensor.parent < 0 ? -1 : BufferOf(tensor.parent, microbatch_idx);
      buffer = static_cast<BufferId>(program_.buffers.size());
      program_.buffers.push_back(
          {.name = is_of_microbatch
                       ? absl::StrCat("mb", microbatch_idx, "/", tensor.name)
                       : tensor.name,
           .dtype = tensor.dtype,
           .dims = {tensor.dims.begin(), tensor.dims.end()},
           .arena = Arena::kStep,
           .offset_bytes = tensor.parent_offset_bytes,
           .bytes = tensor.bytes(),
           .parent = parent});
    }
    return buffer;
  }

  // `also_after`: waits beyond what the operands ask for; negative ones count
  // for nothing.
  InstructionId Emit(const GraphOp& op, int32_t microbatch_idx,
                     const Waits& also_after) {
    Instruction instruction{.kind = op.kind,
                            .phase = op.phase,
                            .lane = LaneOf(op.kind, op.attributes),
                            .microbatch_idx = microbatch_idx,
                            .name = op.name,
                            .attributes = op.attributes};
    if (microbatch_idx == 0 && !op.adds_always) {
      ClearAccumulate(instruction.attributes);
    }
    for (TensorId id : op.inputs) {
      instruction.inputs.push_back(BufferOf(id, microbatch_idx));
    }
    for (TensorId id : op.outputs) {
      instruction.outputs.push_back(BufferOf(id, microbatch_idx));
    }
    Dependencies after =
        dependencies_.DependenciesOf(instruction, program_.buffers);
    for (InstructionId id : also_after) {
      if (id >= 0) after.push_back(id);
    }
    instruction.waits = order_.NeededWaits(instruction.lane, std::move(after));
    const InstructionId id =
        static_cast<InstructionId>(program_.instructions.size());
    order_.Append(instruction.lane, instruction.waits);
    dependencies_.Add(id, instruction, program_.buffers);
    program_.lanes[static_cast<int>(instruction.lane)].push_back(id);
    for (const BufferId input : instruction.inputs) {
      const BufferId parent = program_.buffers[input].parent;
      if (parent >= 0) last_use_of_gather_[parent] = id;
    }
    program_.instructions.push_back(std::move(instruction));
    return id;
  }

  void EmitAll(const std::vector<GraphOp>& ops) {
    for (const GraphOp& op : ops) Emit(op, kWholeStep, {});
  }

  // A load or receive may run during the pass before its own, not earlier, so
  // that what it fills is not alive for longer. In turn a pass starts once the
  // send of the same kind two micro-batches ago has left its buffer: it has by
  // then in any run without a laggard, and only two are alive.
  // Weight gradients that are a pass of their own hold nothing up.
  void EmitPass(ChunkPass pass, const ChunkPass* next) {
    const bool is_forward = pass.kind == ChunkPassKind::kForward;
    const size_t num_passes = last_compute_of_pass_.size();
    const InstructionId two_before =
        num_passes < 2 ? -1 : last_compute_of_pass_[num_passes - 2];
    std::vector<InstructionId>& sends = sends_[is_forward ? 0 : 1];
    InstructionId old_send = sends.size() < kTransferBuffers
                                 ? -1
                                 : sends[sends.size() - kTransferBuffers];
    InstructionId send = -1;
    InstructionId last_compute = -1;
    const std::vector<GraphOp>& ops = OpsOf(pass.kind);
    // The pass before has emitted the first.
    for (size_t i = std::exchange(num_gathered_ahead_, 0); i < ops.size();
         ++i) {
      const GraphOp& op = ops[i];
      if (op.gathers_bucket >= 0) {
        EmitGather(op, pass.microbatch_idx);
        continue;
      }
      if (op.first_microbatch_only && pass.microbatch_idx != 0) continue;
      if (pass.kind == ChunkPassKind::kInputGradient &&
          op.phase == Phase::kWeightGradient) {
        continue;
      }
      const Lane lane = LaneOf(op.kind, op.attributes);
      Waits also_after;
      if (op.kind == OpKind::kReceive || op.kind == OpKind::kLoadBatch) {
        also_after.push_back(two_before);
      } else if (lane == Lane::kCompute) {
        also_after.push_back(std::exchange(old_send, -1));
        if (StartsBucketOfGradients(op, pass.microbatch_idx)) {
          also_after.push_back(FinishReductions(1));
        }
      }
      const InstructionId id = Emit(op, pass.microbatch_idx, also_after);
      if (op.kind == OpKind::kSend) send = id;
      if (lane == Lane::kCompute) last_compute = id;
      if (next != nullptr) GatherAhead(*next, op.num_gathers_ahead);
      if (!is_forward && op.completes_bucket >= 0) {
        EmitReductions(op.completes_bucket, pass.microbatch_idx);
      }
    }
    if (send >= 0) sends.push_back(send);
    last_compute_of_pass_.push_back(last_compute);
  }

  // Those that the micro-batch's input-gradient pass left out.
  void EmitWeightGradients(int32_t microbatch_idx) {
    for (const GraphOp& op : graph_.backward) {
      if (op.phase != Phase::kWeightGradient) continue;
      Emit(op, microbatch_idx, {});
      if (op.completes_bucket >= 0) {
        EmitReductions(op.completes_bucket, microbatch_idx);
      }
    }
  }

  void EmitReductions(int32_t bucket, int32_t microbatch_idx) {
    const Layout& layout = program_.layout;
    if (!layout.shards_gradients()) {
      if (microbatch_idx != num_microbatches_ - 1) return;
      if (!layout.rounds_gradients() && !layout.rounds_across()) {
        EmitAll(graph_.reduce_by_bucket[bucket]);
        return;
      }
      // So that few rounded copies are alive.
      FinishReductions(1);
    }
    const bool is_first = layout.shards_gradients() && microbatch_idx == 0;
    Reduction reduction = StartReduction(
        PointersTo(is_first ? graph_.first_reduce_by_bucket[bucket]
                            : graph_.reduce_by_bucket[bucket]),
        microbatch_idx, {});
    if (layout.shards_gradients() && microbatch_idx == num_microbatches_ - 1) {
      const std::vector<const GraphOp*> last =
          PointersTo(graph_.last_reduce_by_bucket[bucket]);
      // Slices that are rounded before they go across wait for their turn on
      // the compute lane, as all that computes with what is communicated.
      const bool rounds =
          !last.empty() && LaneOf(last.front()->kind,
                                  last.front()->attributes) == Lane::kCompute;
      if (reduction.afterwards.empty() && !rounds) {
        StartReduction(last, microbatch_idx, {});
      } else {
        reduction.afterwards.insert(reduction.afterwards.end(), last.begin(),
                                    last.end());
      }
    }
    reductions_.push_back(std::move(reduction));
  }

  static std::vector<const GraphOp*> PointersTo(
      const std::vector<GraphOp>& ops) {
    std::vector<const GraphOp*> pointers;
    for (const GraphOp& op : ops) pointers.push_back(&op);
    return pointers;
  }

  // Emits the ops before the first that computes with what is communicated.
  // That one and all after it are left for later.
  Reduction StartReduction(const std::vector<const GraphOp*>& ops,
                           int32_t microbatch_idx, Waits also_after) {
    Reduction reduction{.microbatch_idx = microbatch_idx};
    for (const GraphOp* op : ops) {
      const bool computes = LaneOf(op->kind, op->attributes) == Lane::kCompute;
      if (!reduction.afterwards.empty() ||
          (computes && reduction.communication >= 0)) {
        reduction.afterwards.push_back(op);
        continue;
      }
      const InstructionId id =
          Emit(*op, microbatch_idx, std::exchange(also_after, {}));
      if (!computes) reduction.communication = id;
    }
    return reduction;
  }

  // Has the compute lane take up all but the last `num_left` reductions under
  // way, in order. Returns the last communication it has not waited for by an
  // instruction of its own.
  InstructionId FinishReductions(size_t num_left) {
    InstructionId communication = -1;
    while (reductions_.size() > num_left) {
      const Reduction reduction = std::move(reductions_.front());
      reductions_.pop_front();
      if (reduction.afterwards.empty()) {
        communication = reduction.communication;
        continue;
      }
      Reduction across =
          StartReduction(reduction.afterwards, reduction.microbatch_idx,
                         {std::exchange(communication, -1)});
      if (!across.afterwards.empty()) across_.push_back(std::move(across));
    }
    for (; across_.size() > num_left; across_.pop_front()) {
      StartReduction(across_.front().afterwards, across_.front().microbatch_idx,
                     {});
    }
    return communication;
  }

  // Whether the op is the first to write the micro-batch's gradients of a
  // bucket that live no longer than their reduction. Norms and biases, of all
  // layers, are small enough to be left out.
  bool StartsBucketOfGradients(const GraphOp& op, int32_t microbatch_idx) {
    const std::vector<TensorId>& whole = graph_.sharded.gradients;
    for (const TensorId output : op.outputs) {
      const TensorId parent = graph_.tensors[output].parent;
      const auto found =
          std::find(whole.begin(), whole.end(), parent < 0 ? output : parent);
      if (found == whole.end()) continue;
      const Bucket& bucket = graph_.parameters.buckets[found - whole.begin()];
      if (bucket.weight_decay &&
          buffer_of_microbatch_[microbatch_idx][*found] < 0) {
        return true;
      }
    }
    return false;
  }

  // Gathered buckets take turns in two places, those that are read all along in
  // two each of their own: a gather waits for the last use of what it takes the
  // place of.
  void EmitGather(const GraphOp& op, int32_t microbatch_idx) {
    std::vector<BufferId>& gathers =
        gathers_[IsReadAllAlong(op.gathers_bucket) ? op.gathers_bucket : -1];
    InstructionId last_use = -1;
    if (gathers.size() >= 2) {
      last_use = last_use_of_gather_.at(gathers[gathers.size() - 2]);
    }
    Emit(op, microbatch_idx, {last_use});
    gathers.push_back(BufferOf(op.outputs[0], microbatch_idx));
  }
  // Gathers `num_weights` buckets of the pass to come, and those that it reads
  // all along, so that they are not behind the reductions of the pass under
  // way.
  void GatherAhead(ChunkPass pass, int32_t num_weights) {
    const std::vector<GraphOp>& ops = OpsOf(pass.kind);
    size_t num_to_gather = 0;
    while (num_to_gather < ops.size() && num_weights > 0 &&
           ops[num_to_gather].gathers_bucket >= 0) {
      if (!IsReadAllAlong(ops[num_to_gather].gathers_bucket)) --num_weights;
      ++num_to_gather;
    }
    for (; num_gathered_ahead_ < num_to_gather; ++num_gathered_ahead_) {
      EmitGather(ops[num_gathered_ahead_], pass.microbatch_idx);
    }
  }
  bool IsReadAllAlong(int32_t bucket) const {
    return graph_.parameters.buckets[bucket].is_read_all_along;
  }

  void PlaceStepBuffers() {
    std::vector<BufferId> ids;
    std::vector<int32_t> request_of_buffer(program_.buffers.size(), -1);
    std::vector<ArenaRequest> requests;
    auto use = [&](BufferId buffer, InstructionId id) {
      if (program_.buffers[buffer].arena != Arena::kStep) return;
      if (program_.buffers[buffer].parent >= 0) {
        buffer = program_.buffers[buffer].parent;
      }
      if (request_of_buffer[buffer] < 0) {
        request_of_buffer[buffer] = static_cast<int32_t>(requests.size());
        requests.push_back({.bytes = program_.buffers[buffer].bytes});
        ids.push_back(buffer);
      }
      auto& uses = requests[request_of_buffer[buffer]].uses;
      if (uses.empty() || uses.back() != id) uses.push_back(id);
    };
    for (size_t i = 0; i < program_.instructions.size(); ++i) {
      const Instruction& instruction = program_.instructions[i];
      const InstructionId id = static_cast<InstructionId>(i);
      for (BufferId buffer : instruction.inputs) use(buffer, id);
      for (BufferId buffer : instruction.outputs) use(buffer, id);
    }
    const ArenaPlan plan = PlanArena(requests, order_, stop_);
    for (size_t i = 0; i < ids.size(); ++i) {
      program_.buffers[ids[i]].offset_bytes = plan.offsets[i];
    }
    for (Buffer& buffer : program_.buffers) {
      if (buffer.parent < 0) continue;
      buffer.offset_bytes += program_.buffers[buffer.parent].offset_bytes;
    }
    program_.step_arena_bytes = plan.bytes;
  }

  const Graph& graph_;
  const std::stop_token stop_;
  const std::vector<ChunkPass> passes_;
  const int32_t num_microbatches_;  // Of this data replica.
  Program program_;
  std::vector<BufferId> buffer_of_tensor_;  // Persistent ones; else -1.
  std::vector<std::vector<BufferId>> buffer_of_microbatch_;
  std::vector<BufferId> buffer_of_step_;  // For ops that run once a step.
  DependencyTracker dependencies_;
  HappensBefore order_;
  std::vector<InstructionId> last_compute_of_pass_;
  std::deque<Reduction> reductions_;
  std::deque<Reduction> across_;  // Of slices, between groups of data ranks.
  // Gathered buckets in order: each that is read all along under its index, the
  // others under -1.
  std::map<int32_t, std::vector<BufferId>> gathers_;
  std::map<BufferId, InstructionId> last_use_of_gather_;
  size_t num_gathered_ahead_ = 0;                    // For the pass to come.
  std::array<std::vector<InstructionId>, 2> sends_;  // Forward, backward.
};

absl::Status CheckInput(const ModelSpec& model, const Layout& layout,
                        int32_t stage) {
  RETURN_IF_ERROR(CheckExecutable(model, layout));
  RETURN_IF_ERROR(ValidateModel(model));
  RETURN_IF_ERROR(ValidateLayout(model, layout, layout.global_batch()));
  if (stage >= 0 && stage < layout.pipeline) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "stage ", stage, " of a pipeline of ", layout.pipeline, " stages"));
}

// The passes of a data replica.
absl::StatusOr<PassOrder> TrainingOrder(const Layout& layout,
                                        int32_t data_idx) {
  if (layout.schedule == Schedule::kListScheduled) {
    return ListedOrder(layout, data_idx);
  }
  const PipelineShape shape = {
      .num_stages = layout.pipeline,
      .num_microbatches = layout.num_microbatches_of(data_idx)};
  PassOrder order;
  for (int32_t stage = 0; stage < layout.pipeline; ++stage) {
    order.push_back(layout.schedule == Schedule::kZeroBubble
                        ? ZeroBubble(shape, stage)
                        : OneForwardOneBackward(shape, stage));
  }
  return order;
}

absl::StatusOr<Program> LowerTraining(const ModelSpec& model,
                                      const Layout& layout, int32_t stage,
                                      std::vector<ChunkPass> passes,
                                      const std::stop_token& stop) {
  RETURN_IF_ERROR(CheckNotStopped(stop));
  const Graph graph = BuildTrainingGraph(model, layout, stage);
  return Lowering(graph, ProgramKind::kTraining, layout, stage,
                  std::move(passes), stop)
      .Run();
}

// The Programs of all stages, for a data replica.
absl::StatusOr<std::vector<Program>> BuildAll(const ModelSpec& model,
                                              const Layout& layout,
                                              int32_t data_idx, int num_threads,
                                              const std::stop_token& stop) {
  RETURN_IF_ERROR(CheckInput(model, layout, /*stage=*/0));
  RETURN_IF_ERROR(CheckProgramSize(model, layout, stop));
  ASSIGN_OR_RETURN(PassOrder order, TrainingOrder(layout, data_idx));
  std::vector<Program> programs(layout.pipeline);
  const auto lower = [&](int64_t i) -> absl::Status {
    const auto stage = static_cast<int32_t>(i);
    ASSIGN_OR_RETURN(programs[i], LowerTraining(model, layout, stage,
                                                std::move(order[i]), stop));
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(ParallelFor(layout.pipeline, num_threads, lower));
  if (NeedsCommonOrder(layout)) RETURN_IF_ERROR(PutIntoCommonOrder(programs));
  return programs;
}

}  // namespace

absl::StatusOr<Program> BuildTrainingProgram(const ModelSpec& model,
                                             const Layout& layout,
                                             const MeshCoordinates& rank,
                                             const std::stop_token& stop) {
  const int32_t stage = rank.pipeline;
  RETURN_IF_ERROR(CheckInput(model, layout, stage));
  if (rank.data < 0 || rank.data >= layout.data) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data replica ", rank.data, " of ", layout.data, " replicas"));
  }
  if (NeedsCommonOrder(layout)) {
    // Callers build the Programs of several stages side by side.
    ASSIGN_OR_RETURN(
        std::vector<Program> programs,
        BuildAll(model, layout, rank.data, /*num_threads=*/1, stop));
    return std::move(programs[stage]);
  }
  RETURN_IF_ERROR(CheckProgramSize(model, layout, stop));
  ASSIGN_OR_RETURN(PassOrder order, TrainingOrder(layout, rank.data));
  return LowerTraining(model, layout, stage, std::move(order[stage]), stop);
}

absl::StatusOr<Program> BuildTrainingProgram(const ModelSpec& model,
                                             const Layout& layout,
                                             int32_t stage,
                                             const std::stop_token& stop) {
  return BuildTrainingProgram(model, layout, MeshCoordinates{.pipeline = stage},
                              stop);
}

absl::StatusOr<std::vector<Program>> BuildTrainingPrograms(
    const ModelSpec& model, const Layout& layout, const std::stop_token& stop) {
  return BuildAll(model, layout, /*data_idx=*/0, NumComputeThreads(), stop);
}

absl::StatusOr<std::vector<Program>> BuildShorterPrograms(
    const ModelSpec& model, const Layout& layout, const std::stop_token& stop) {
  if (!layout.is_uneven()) return std::vector<Program>();
  return BuildAll(model, layout, /*data_idx=*/layout.data - 1,
                  NumComputeThreads(), stop);
}

absl::StatusOr<std::vector<Program>> BuildProgramsOfRanks(
    const ModelSpec& model, const Layout& layout) {
  ASSIGN_OR_RETURN(std::vector<Program> programs,
                   BuildTrainingPrograms(model, layout));
  ASSIGN_OR_RETURN(std::vector<Program> shorter,
                   BuildShorterPrograms(model, layout));
  programs.insert(programs.end(), std::make_move_iterator(shorter.begin()),
                  std::make_move_iterator(shorter.end()));
  return programs;
}

absl::StatusOr<Program> BuildValidationProgram(const ModelSpec& model,
                                               const Layout& layout,
                                               int32_t stage) {
  RETURN_IF_ERROR(CheckInput(model, layout, stage));
  const Graph graph = BuildValidationGraph(model, layout, stage);
  return Lowering(graph, ProgramKind::kValidation, layout, stage,
                  {{ChunkPassKind::kForward, stage, 0}}, /*stop=*/{})
      .Run();
}

absl::StatusOr<Program> BuildPublishProgram(const ModelSpec& model,
                                            const Layout& layout,
                                            int32_t stage) {
  RETURN_IF_ERROR(CheckInput(model, layout, stage));
  const Graph graph = BuildPublishGraph(model, layout, stage);
  return Lowering(graph, ProgramKind::kPublish, layout, stage, {}, /*stop=*/{})
      .Run();
}

}  // namespace millrace
