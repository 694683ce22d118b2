#include "planner/program/program.h"

#include <algorithm>
#include <iterator>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "planner/program/op_table.h"

namespace millrace {
namespace {

const char* ProgramKindName(ProgramKind kind) {
  switch (kind) {
    case ProgramKind::kTraining:
      return "training";
    case ProgramKind::kValidation:
      return "validation";
    case ProgramKind::kPublish:
      return "publish";
  }
  CHECK(false) << "unknown kind of program " << static_cast<int>(kind);
  return "";
}

std::string BufferToString(const Program& program, BufferId id) {
  const Buffer& buffer = program.buffers[id];
  const std::string text = absl::StrFormat(
      "%6d %-10s %12d %12d  %-4s [%s]  %s", id,
      buffer.arena == Arena::kStep ? "step" : "persistent", buffer.offset_bytes,
      buffer.bytes, DTypeName(buffer.dtype), absl::StrJoin(buffer.dims, ", "),
      buffer.name);
  return buffer.parent < 0 ? text
                           : absl::StrCat(text, "  part of ", buffer.parent);
}

std::string InstructionToString(const Program& program, InstructionId id) {
  const Instruction& instruction = program.instructions[id];
  const std::string microbatch =
      instruction.microbatch_idx < 0
          ? "step"
          : absl::StrCat("mb", instruction.microbatch_idx);
  std::string text = absl::StrFormat(
      "%6d %-16s %-16s %-5s %s  %s", id, LaneName(instruction.lane),
      PhaseName(instruction.phase), microbatch, instruction.name,
      OpKindName(instruction.kind));
  const std::string attributes = AttributesToString(instruction.attributes);
  if (!attributes.empty()) absl::StrAppend(&text, " ", attributes);
  absl::StrAppend(&text, "  in: ", absl::StrJoin(instruction.inputs, " "),
                  "  out: ", absl::StrJoin(instruction.outputs, " "));
  if (!instruction.waits.empty()) {
    absl::StrAppend(&text, "  waits: ", absl::StrJoin(instruction.waits, " "));
  }
  return text;
}

bool GoesToNext(const OpAttributes& attributes) {
  return std::get<TransferAttributes>(attributes).direction ==
         Direction::kToNext;
}

}  // namespace

const char* LaneName(Lane lane) {
  static constexpr const char* kNames[] = {
      "compute",          "tensor_comm",   "data_comm",    "send_next",
      "receive_previous", "send_previous", "receive_next", "host"};
  static_assert(std::size(kNames) == kNumLanes);
  CHECK(static_cast<int>(lane) < kNumLanes);
  return kNames[static_cast<int>(lane)];
}

Lane LaneOf(OpKind kind, const OpAttributes& attributes) {
  switch (Describe(kind).lane) {
    case LaneRule::kCompute:
      return Lane::kCompute;
    case LaneRule::kHost:
      return Lane::kHost;
    case LaneRule::kOfGroup:
      return std::get<CollectiveAttributes>(attributes).group == Group::kTensor
                 ? Lane::kTensorComm
                 : Lane::kDataComm;
    case LaneRule::kToPeer:
      return GoesToNext(attributes) ? Lane::kSendNext : Lane::kSendPrevious;
    case LaneRule::kFromPeer:
      return GoesToNext(attributes) ? Lane::kReceivePrevious
                                    : Lane::kReceiveNext;
    case LaneRule::kPlanOnly:
      break;
  }
  CHECK(false) << "no lane for " << OpKindName(kind);
  return Lane::kCompute;
}

const char* PhaseName(Phase phase) {
  switch (phase) {
    case Phase::kForward:
      return "forward";
    case Phase::kInputGradient:
      return "input_gradient";
    case Phase::kWeightGradient:
      return "weight_gradient";
    case Phase::kRecompute:
      return "recompute";
    case Phase::kGradientReduce:
      return "gradient_reduce";
    case Phase::kOptimizer:
      return "optimizer";
    case Phase::kParameterGather:
      return "parameter_gather";
  }
  CHECK(false) << "unknown phase " << static_cast<int>(phase);
  return "";
}

std::string ProgramToString(const Program& program) {
  std::string text = absl::StrCat(
      ProgramKindName(program.kind), " program of stage ", program.stage,
      " of ", program.layout.pipeline,
      "\nlayout: ", LayoutToString(program.layout),
      "\npersistent arena: ", program.persistent_arena_bytes,
      " bytes\nstep arena: ", program.step_arena_bytes, " bytes\n");
  absl::StrAppend(&text, "flat buffers: parameters ", program.parameters_buffer,
                  ", gradients ", program.gradients_buffer, ", exp_avg ",
                  program.exp_avg_buffer, ", exp_avg_sq ",
                  program.exp_avg_sq_buffer, ", scalars ",
                  program.scalars_buffer, ", master ", program.master_buffer,
                  ", norms ", program.norms_buffer, ", scratch ",
                  program.scratch_buffer, "\n");
  absl::StrAppend(&text, "\nbuckets: name, offset, elements\n");
  for (const Bucket& bucket : program.parameters.buckets) {
    absl::StrAppend(&text, "  ", bucket.name, " ", bucket.offset, " ",
                    bucket.num_elements, "\n");
  }
  absl::StrAppend(&text,
                  "\nbuffers: id, arena, offset, bytes, type, dims, name\n");
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    absl::StrAppend(&text, BufferToString(program, static_cast<BufferId>(i)),
                    "\n");
  }
  absl::StrAppend(&text,
                  "\ninstructions: id, lane, phase, micro-batch, name, op\n");
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    absl::StrAppend(&text,
                    InstructionToString(program, static_cast<InstructionId>(i)),
                    "\n");
  }
  return text;
}

uint64_t ProgramHash(const Program& program) {
  // FNV-1a: stable over machines and versions, which absl::Hash is not.
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : ProgramToString(program)) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001b3u;
  }
  return hash;
}

std::vector<BufferId> WrittenBuffers(const Instruction& instruction) {
  std::vector<BufferId> written = instruction.outputs;
  const OpDescriptor& op = Describe(instruction.kind);
  const size_t size = std::min(instruction.inputs.size(), op.inputs.size());
  for (size_t i = 0; i < size; ++i) {
    if (op.inputs[i].is_scratch_afterwards) {
      written.push_back(instruction.inputs[i]);
    }
  }
  return written;
}

}  // namespace millrace
