#include "worker/measure/single_op.h"

#include <algorithm>
#include <bit>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/units.h"
#include "planner/program/op_table.h"
#include "planner/program/workspace.h"

namespace millrace {
namespace {

BufferId AddBuffer(Program& program, DType dtype, int64_t num_elements) {
  const int64_t bytes = num_elements * DTypeBytes(dtype);
  program.buffers.push_back({.name = absl::StrCat("b", program.buffers.size()),
                             .dtype = dtype,
                             .dims = {num_elements},
                             .arena = Arena::kStep,
                             .offset_bytes = program.step_arena_bytes,
                             .bytes = bytes});
  program.step_arena_bytes =
      RoundUp(program.step_arena_bytes + bytes, kBufferAlignment);
  return static_cast<BufferId>(program.buffers.size()) - 1;
}

// The time of an op does not depend on the numbers in a table of rotary
// positions, and only the model has their factors.
OpAttributes WithoutRopeFactors(OpAttributes attributes) {
  if (auto* a = std::get_if<AttentionAttributes>(&attributes)) {
    a->rope_scaling = {};
    a->rope_factors = 0;
  }
  return attributes;
}

// Alone, a head has no logits to take over.
bool HasAlone(const OperandSpec& spec, const Program& program,
              const OpAttributes& attributes) {
  return spec.presence != Presence::kWithKeptLogits &&
         HasOperand(spec, program.layout, attributes);
}

BufferId AddOperand(Program& program, const OperandSpec& spec,
                    const OpAttributes& attributes) {
  int64_t num_elements = 1;
  for (const int64_t dim : OperandDims(spec, program.layout, attributes)) {
    num_elements *= dim;
  }
  return AddBuffer(program, OperandType(spec, program.layout, attributes),
                   num_elements);
}

struct Copy {
  Operands inputs;
  Operands outputs;
};
// Takes from `warm`, unless it is null, the inputs that are just written.
Copy AddCopy(Program& program, const ProfileOp& of, const Copy* warm) {
  const OpDescriptor& op = Describe(of.kind);
  const OpAttributes& attributes = of.attributes;
  Copy copy;
  for (const OperandSpec& input : op.inputs) {
    if (!HasAlone(input, program, attributes)) continue;
    copy.inputs.push_back(warm != nullptr && input.is_just_written
                              ? warm->inputs[copy.inputs.size()]
                              : AddOperand(program, input, attributes));
  }
  for (const OperandSpec& output : op.outputs) {
    if (!HasAlone(output, program, attributes)) continue;
    copy.outputs.push_back(output.input != kNoInput
                               ? copy.inputs[static_cast<size_t>(output.input)]
                               : AddOperand(program, output, attributes));
  }
  return copy;
}

// Rows of the vocabulary that a kernel may look up; one where it looks up none.
int64_t VocabularyOf(const Instruction& instruction) {
  const auto* a = std::get_if<VocabAttributes>(&instruction.attributes);
  return a == nullptr ? 1 : a->vocab_rows;
}

}  // namespace

Program OpsProgram(Precision precision, std::span<const ProfileOp> ops,
                   int64_t arena_bytes, Inputs inputs) {
  Program program{.kind = ProgramKind::kTraining,
                  .layout = {.precision = precision},
                  .stage = 0,
                  .parameters_buffer = -1,
                  .gradients_buffer = -1,
                  .exp_avg_buffer = -1,
                  .exp_avg_sq_buffer = -1,
                  .scalars_buffer = -1,
                  .persistent_arena_bytes = 0,
                  .step_arena_bytes = 0};
  struct Distinct {
    const ProfileOp* op;
    int64_t count = 0;  // How often it is among the ops.
    int64_t next = 0;   // The repetition that comes next.
    std::vector<Copy> copies;
  };
  std::vector<Distinct> distinct;
  std::vector<size_t> distinct_of_op;
  for (const ProfileOp& op : ops) {
    CHECK(!IsCollective(op.kind) && !IsTransfer(op.kind))
        << OpKindName(op.kind);
    const auto known = std::find_if(
        distinct.begin(), distinct.end(), [&](const Distinct& other) {
          return other.op->kind == op.kind &&
                 other.op->attributes == op.attributes;
        });
    distinct_of_op.push_back(static_cast<size_t>(known - distinct.begin()));
    if (known == distinct.end()) {
      distinct.push_back(
          {.op = &op, .copies = {AddCopy(program, op, nullptr)}});
    }
    ++distinct[distinct_of_op.back()].count;
  }
  const int64_t num_copies =
      arena_bytes / std::max<int64_t>(program.step_arena_bytes, 1);
  for (Distinct& each : distinct) {
    while (static_cast<int64_t>(each.copies.size()) <
           std::min(num_copies, each.count)) {
      each.copies.push_back(
          AddCopy(program, *each.op,
                  inputs == Inputs::kJustWritten ? &each.copies[0] : nullptr));
    }
  }
  if (precision == Precision::kBfloat16) {
    program.scratch_buffer =
        AddBuffer(program, DType::kInt32,
                  kComputeScratchBytes / DTypeBytes(DType::kInt32));
  }
  for (size_t i = 0; i < ops.size(); ++i) {
    Distinct& each = distinct[distinct_of_op[i]];
    const Copy& copy = each.copies[each.next++ % each.copies.size()];
    program.instructions.push_back(
        {.kind = ops[i].kind,
         .phase = Phase::kForward,
         .lane = Lane::kCompute,
         .microbatch_idx = 0,
         .name = absl::StrCat("repetition_", i),
         .attributes = WithoutRopeFactors(ops[i].attributes),
         .inputs = copy.inputs,
         .outputs = copy.outputs});
    program.lanes[static_cast<int>(Lane::kCompute)].push_back(
        static_cast<InstructionId>(i));
  }
  return program;
}

Program SingleOpProgram(Precision precision, OpKind kind,
                        const OpAttributes& attributes, int32_t num_repetitions,
                        int64_t arena_bytes) {
  const std::vector<ProfileOp> ops(num_repetitions, {kind, attributes});
  return OpsProgram(precision, ops, arena_bytes);
}

void FillOperands(const Program& program, const Arenas& arenas) {
  const int64_t vocabulary = VocabularyOf(program.instructions.front());
  for (const Buffer& buffer : program.buffers) {
    std::byte* data = arenas.At(buffer);
    const int64_t count = buffer.dims.front();
    if (buffer.dtype == DType::kInt32) {
      // Far apart, as tokens of real text are. Document starts are all zero.
      for (int64_t i = 0; i < count; ++i) {
        reinterpret_cast<int32_t*>(data)[i] =
            static_cast<int32_t>(i * 2654435761 % vocabulary);
      }
    } else if (buffer.dtype == DType::kFloat32) {
      for (int64_t i = 0; i < count; ++i) {
        reinterpret_cast<float*>(data)[i] =
            0.01f * static_cast<float>(1 + i % 7);
      }
    } else if (buffer.dtype == DType::kBfloat16) {
      for (int64_t i = 0; i < count; ++i) {
        // The upper half of a float.
        reinterpret_cast<uint16_t*>(data)[i] = static_cast<uint16_t>(
            std::bit_cast<uint32_t>(0.01f * static_cast<float>(1 + i % 7)) >>
            16);
      }
    } else if (DTypeNumbers(buffer.dtype) > 1) {
      std::fill(data, data + buffer.bytes, std::byte{0});
    } else if (DTypeBytes(buffer.dtype) == 1) {
      // Small numbers in either 8-bit format.
      for (int64_t i = 0; i < count; ++i) {
        data[i] = static_cast<std::byte>(0x20 + i % 7);
      }
    } else {
      std::fill(reinterpret_cast<double*>(data),
                reinterpret_cast<double*>(data) + count, 0.0);
    }
  }
}

}  // namespace millrace
