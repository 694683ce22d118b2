#include "worker/measure/single_op.h"

#include <algorithm>
#include <bit>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/units.h"
#include "planner/program/workspace.h"

namespace millrace {
namespace {

struct Operand {
  DType dtype;
  int64_t num_elements;
};

// `outputs` that are one tensor with an input say which.
struct Operands {
  struct Output {
    Operand operand;
    int32_t same_as_input = -1;
  };
  std::vector<Operand> inputs;
  std::vector<Output> outputs;
};

Operand Floats(int64_t num_elements) { return {DType::kFloat32, num_elements}; }
Operand Integers(int64_t num_elements) { return {DType::kInt32, num_elements}; }
Operand Scalars() { return {DType::kFloat64, kNumStepScalars}; }

// Activations and the parameters that kernels read.
Operand Activations(Precision precision, int64_t num_elements) {
  return {ActivationType(precision), num_elements};
}
// In bf16 of so many bytes, else as the CPU's kernel wants it.
Operand Workspace(Precision precision, int64_t num_bytes, Operand on_cpu) {
  if (precision == Precision::kFloat32) return on_cpu;
  return Integers(num_bytes / DTypeBytes(DType::kInt32));
}

Operands OperandsOfNorm(Precision precision, OpKind kind,
                        const NormAttributes& a) {
  const Operand tokens = Activations(precision, a.num_tokens * a.hidden);
  const Operand rstd = Floats(a.num_tokens);
  const Operand weight = Floats(a.hidden);
  switch (kind) {
    case OpKind::kRmsNormForward:
      return {.inputs = {tokens, weight}, .outputs = {{tokens}, {rstd}}};
    case OpKind::kResidualRmsNormForward:
      return {.inputs = {tokens, tokens, weight},
              .outputs = {{tokens}, {tokens}, {rstd}}};
    default:
      return {.inputs = {tokens, tokens, rstd, weight, tokens},
              .outputs = {{tokens}, {Floats(a.hidden)}}};
  }
}

Operands OperandsOfAttention(Precision precision, OpKind kind,
                             const AttentionAttributes& a) {
  const int64_t num_tokens = a.num_sequences * a.sequence_length;
  const Operand qkv = Activations(
      precision, num_tokens * (a.num_heads + 2 * a.num_kv_heads) * a.head_dim);
  const Operand attended =
      Activations(precision, num_tokens * a.num_heads * a.head_dim);
  const Operand per_head = Floats(num_tokens * a.num_heads);
  const Operand starts = Integers(num_tokens);
  switch (kind) {
    case OpKind::kRope:
      return {.inputs = {qkv}, .outputs = {{qkv, 0}}};
    case OpKind::kAttentionForward:
      return {.inputs = {qkv, starts}, .outputs = {{attended}, {per_head}}};
    default:
      return {
          .inputs = {qkv, starts, attended, per_head, attended},
          .outputs = {{qkv},
                      {Workspace(precision, AttentionBackwardWorkspaceBytes(a),
                                 per_head)}}};
  }
}

Operands OperandsOfVocabulary(Precision precision, OpKind kind,
                              const VocabAttributes& a) {
  const Operand ids = Integers(a.num_tokens);
  const Operand hidden = Activations(precision, a.num_tokens * a.hidden);
  const Operand weight = Activations(precision, a.vocab_rows * a.hidden);
  const Operand d_weight = Floats(a.vocab_rows * a.hidden);
  const Operand stats = Floats(a.num_tokens * 3);
  const Operand logits = Workspace(precision, CrossEntropyWorkspaceBytes(a),
                                   Floats(a.chunk_tokens * a.vocab_rows));
  switch (kind) {
    case OpKind::kEmbeddingForward:
      return {.inputs = {ids, weight}, .outputs = {{hidden}}};
    case OpKind::kEmbeddingBackward:
      return {.inputs = {ids, hidden}, .outputs = {{d_weight}}};
    case OpKind::kCrossEntropyLoss:
      return {.inputs = {ids, stats}, .outputs = {{Scalars()}}};
    case OpKind::kCrossEntropyStats:
      return {.inputs = {hidden, weight, ids}, .outputs = {{stats}, {logits}}};
    case OpKind::kLinearCrossEntropy:
      return {.inputs = {hidden, weight, ids},
              .outputs = {{hidden}, {d_weight}, {Scalars()}, {logits}}};
    default:
      return {.inputs = {hidden, weight, ids, stats},
              .outputs = {{hidden}, {d_weight}, {Scalars()}, {logits}}};
  }
}

Operands OperandsOfElementwise(Precision precision, OpKind kind,
                               const ElementwiseAttributes& a) {
  const Operand one = Activations(precision, a.rows * a.cols);
  const Operand two = Activations(precision, 2 * a.rows * a.cols);
  const Operand ids = Integers(a.rows * a.cols);
  switch (kind) {
    case OpKind::kLoadBatch:
      return {.outputs = {{ids}, {ids}, {ids}}};
    case OpKind::kZero:
      return {.outputs = {{Floats(a.rows * a.cols)}}};
    case OpKind::kSwigluForward:
      return {.inputs = {two}, .outputs = {{one}}};
    case OpKind::kSwigluBackward:
      return {.inputs = {two, one}, .outputs = {{two}}};
    default:
      return {.inputs = {one, one}, .outputs = {{one}}};
  }
}

Operands OperandsOfOptimizer(Precision precision, OpKind kind,
                             const OptimizerAttributes& a) {
  const Operand bucket = Floats(a.num_elements);
  if (kind == OpKind::kSquaredNorm) {
    return {.inputs = {bucket}, .outputs = {{Scalars()}}};
  }
  if (kind == OpKind::kAccumulateGradients) {
    return {.inputs = {bucket, bucket}, .outputs = {{bucket, 1}}};
  }
  const Operand rounded = {DType::kBfloat16, a.num_elements};
  if (kind == OpKind::kCastParameters || kind == OpKind::kRoundGradients) {
    return {.inputs = {bucket}, .outputs = {{rounded}}};
  }
  if (kind == OpKind::kWidenGradients) {
    return {.inputs = {rounded}, .outputs = {{bucket}}};
  }
  Operands operands = {
      .inputs = {Activations(precision, a.num_elements), bucket, bucket, bucket,
                 Floats(1), Integers(1)},
      .outputs = {{bucket, 0}, {bucket, 2}, {bucket, 3}}};
  if (precision == Precision::kBfloat16) {
    operands.inputs.push_back(bucket);  // The master weights.
    operands.outputs.push_back({bucket, 6});
  }
  return operands;
}

Operands OperandsOf(Precision precision, OpKind kind,
                    const OpAttributes& attributes) {
  if (const auto* a = std::get_if<NormAttributes>(&attributes)) {
    return OperandsOfNorm(precision, kind, *a);
  }
  if (const auto* a = std::get_if<AttentionAttributes>(&attributes)) {
    return OperandsOfAttention(precision, kind, *a);
  }
  if (const auto* a = std::get_if<VocabAttributes>(&attributes)) {
    return OperandsOfVocabulary(precision, kind, *a);
  }
  if (const auto* a = std::get_if<ElementwiseAttributes>(&attributes)) {
    return OperandsOfElementwise(precision, kind, *a);
  }
  if (const auto* a = std::get_if<OptimizerAttributes>(&attributes)) {
    return OperandsOfOptimizer(precision, kind, *a);
  }
  if (kind == OpKind::kClipFactor) {
    return {.inputs = {Scalars()}, .outputs = {{Floats(1)}, {Integers(1)}}};
  }
  CHECK(kind == OpKind::kGemm) << OpKindName(kind);
  const auto& a = std::get<GemmAttributes>(attributes);
  return {.inputs = {Activations(precision, a.m * a.k),
                     Activations(precision, a.k * a.n)},
          .outputs = {{{GemmOutputType(precision, a), a.m * a.n}}}};
}

BufferId AddBuffer(Program& program, const Operand& operand) {
  const int64_t bytes = operand.num_elements * DTypeBytes(operand.dtype);
  program.buffers.push_back({.name = absl::StrCat("b", program.buffers.size()),
                             .dtype = operand.dtype,
                             .dims = {operand.num_elements},
                             .arena = Arena::kStep,
                             .offset_bytes = program.step_arena_bytes,
                             .bytes = bytes});
  program.step_arena_bytes =
      RoundUp(program.step_arena_bytes + bytes, kBufferAlignment);
  return static_cast<BufferId>(program.buffers.size()) - 1;
}

struct Copy {
  std::vector<BufferId> inputs;
  std::vector<BufferId> outputs;
};
Copy AddCopy(Program& program, const Operands& operands) {
  Copy copy;
  for (const Operand& input : operands.inputs) {
    copy.inputs.push_back(AddBuffer(program, input));
  }
  for (const Operands::Output& output : operands.outputs) {
    copy.outputs.push_back(output.same_as_input >= 0
                               ? copy.inputs[output.same_as_input]
                               : AddBuffer(program, output.operand));
  }
  return copy;
}

// Rows of the vocabulary that a kernel may look up; one where it looks up none.
int64_t VocabularyOf(const Instruction& instruction) {
  const auto* a = std::get_if<VocabAttributes>(&instruction.attributes);
  return a == nullptr ? 1 : a->vocab_rows;
}

}  // namespace

Program SingleOpProgram(Precision precision, OpKind kind,
                        const OpAttributes& attributes, int32_t num_repetitions,
                        int64_t arena_bytes) {
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
  const Operands operands = OperandsOf(precision, kind, attributes);
  std::vector<Copy> copies = {AddCopy(program, operands)};
  const int64_t copy_bytes = program.step_arena_bytes;
  const int64_t num_copies = std::clamp<int64_t>(
      arena_bytes / std::max<int64_t>(copy_bytes, 1), 1, num_repetitions);
  while (static_cast<int64_t>(copies.size()) < num_copies) {
    copies.push_back(AddCopy(program, operands));
  }
  if (precision == Precision::kBfloat16) {
    program.scratch_buffer = AddBuffer(
        program, Integers(kComputeScratchBytes / DTypeBytes(DType::kInt32)));
  }
  for (int32_t i = 0; i < num_repetitions; ++i) {
    const Copy& copy = copies[i % copies.size()];
    program.instructions.push_back({.kind = kind,
                                    .phase = Phase::kForward,
                                    .lane = Lane::kCompute,
                                    .microbatch_idx = 0,
                                    .name = absl::StrCat("repetition_", i),
                                    .attributes = attributes,
                                    .inputs = copy.inputs,
                                    .outputs = copy.outputs});
    program.lanes[static_cast<int>(Lane::kCompute)].push_back(i);
  }
  return program;
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
    } else {
      std::fill(reinterpret_cast<double*>(data),
                reinterpret_cast<double*>(data) + count, 0.0);
    }
  }
}

}  // namespace millrace
