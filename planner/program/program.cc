#include "planner/program/program.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <string>
#include <variant>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
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

// Appends a number, right-aligned in `width` columns.
void AppendNumber(int64_t number, size_t width, std::string* text) {
  const size_t begin = text->size();
  absl::StrAppend(text, number);
  const size_t size = text->size() - begin;
  if (size < width) text->insert(begin, width - size, ' ');
}

// Appends a word, left-aligned in `width` columns.
void AppendWord(absl::string_view word, size_t width, std::string* text) {
  absl::StrAppend(text, word);
  if (word.size() < width) text->append(width - word.size(), ' ');
}

void AppendJoined(std::span<const int32_t> ids, std::string* text) {
  for (size_t i = 0; i < ids.size(); ++i) {
    absl::StrAppend(text, i == 0 ? "" : " ", ids[i]);
  }
}

// Appends the buffer's line without its newline. Columns are appended one by
// one: a large Program has a million lines, and parsing a format string for
// each takes longer than the rest.
void AppendBuffer(const Program& program, BufferId id, std::string* text) {
  const Buffer& buffer = program.buffers[id];
  AppendNumber(id, 6, text);
  text->push_back(' ');
  AppendWord(buffer.arena == Arena::kStep ? "step" : "persistent", 10, text);
  text->push_back(' ');
  AppendNumber(buffer.offset_bytes, 12, text);
  text->push_back(' ');
  AppendNumber(buffer.bytes, 12, text);
  text->append("  ");
  AppendWord(DTypeName(buffer.dtype), 4, text);
  text->append(" [");
  for (size_t i = 0; i < buffer.dims.size(); ++i) {
    absl::StrAppend(text, i == 0 ? "" : ", ", buffer.dims[i]);
  }
  absl::StrAppend(text, "]  ", buffer.name);
  if (buffer.parent >= 0) absl::StrAppend(text, "  part of ", buffer.parent);
}

void AppendInstruction(const Program& program, InstructionId id,
                       std::string* text) {
  const Instruction& instruction = program.instructions[id];
  AppendNumber(id, 6, text);
  text->push_back(' ');
  AppendWord(LaneName(instruction.lane), 16, text);
  text->push_back(' ');
  AppendWord(PhaseName(instruction.phase), 16, text);
  text->push_back(' ');
  AppendWord(instruction.microbatch_idx < 0
                 ? "step"
                 : absl::StrCat("mb", instruction.microbatch_idx),
             5, text);
  absl::StrAppend(text, " ", instruction.name, "  ",
                  OpKindName(instruction.kind));
  const std::string attributes = AttributesToString(instruction.attributes);
  if (!attributes.empty()) absl::StrAppend(text, " ", attributes);
  text->append("  in: ");
  AppendJoined(instruction.inputs, text);
  text->append("  out: ");
  AppendJoined(instruction.outputs, text);
  if (!instruction.waits.empty()) {
    text->append("  waits: ");
    AppendJoined(instruction.waits, text);
  }
}

// Calls `take` with the text of the Program, line by line.
void WriteProgram(const Program& program,
                  absl::FunctionRef<void(absl::string_view)> take) {
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
  if (program.float8_weights_buffer >= 0) {
    absl::StrAppend(&text, "weights in 8 bits: ", program.float8_weights_buffer,
                    "\n");
  }
  absl::StrAppend(&text, "\nbuckets: name, offset, elements\n");
  for (const Bucket& bucket : program.parameters.buckets) {
    absl::StrAppend(&text, "  ", bucket.name, " ", bucket.offset, " ",
                    bucket.num_elements, "\n");
  }
  absl::StrAppend(&text,
                  "\nbuffers: id, arena, offset, bytes, type, dims, name\n");
  take(text);
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    text.clear();
    AppendBuffer(program, static_cast<BufferId>(i), &text);
    text.push_back('\n');
    take(text);
  }
  take("\ninstructions: id, lane, phase, micro-batch, name, op\n");
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    text.clear();
    AppendInstruction(program, static_cast<InstructionId>(i), &text);
    text.push_back('\n');
    take(text);
  }
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
  CHECK(!IsPlanOnly(kind)) << "no lane for " << OpKindName(kind);
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
  }
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
  std::string text;
  WriteProgram(program,
               [&](absl::string_view part) { absl::StrAppend(&text, part); });
  return text;
}

uint64_t ProgramHash(const Program& program) {
  // FNV-1a: stable over machines and versions, which absl::Hash is not.
  uint64_t hash = 0xcbf29ce484222325u;
  WriteProgram(program, [&](absl::string_view part) {
    for (const char c : part) {
      hash ^= static_cast<unsigned char>(c);
      hash *= 0x100000001b3u;
    }
  });
  return hash;
}

Operands WrittenBuffers(const Instruction& instruction) {
  Operands written = instruction.outputs;
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
