#include "worker/compare/compare.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "planner/program/op_table.h"

namespace millrace {
namespace {

// The relative error of one op on equal operands. fp32: sums of thousands of
// terms in another order. bf16 keeps 8 bits: rounding a tensor once
// costs 1.7e-3 of it; attention rounds probabilities too, the loss its logits
// and their gradient. Sums kept in fp32, of bf16 factors that are equal, do not
// round. Copies in 8 bits have the same bits on both: their scales are one
// division of equal numbers. Their products are summed with fewer bits than
// fp32 has.
double IsolatedError(Precision precision, OpKind kind, DType output) {
  constexpr double kOtherOrder = 2e-5;
  if (precision == Precision::kFloat32) return kOtherOrder;
  switch (kind) {
    case OpKind::kLinearCrossEntropy:
    case OpKind::kCrossEntropyStats:
    case OpKind::kCrossEntropyGradient:
      return 1e-2;
    case OpKind::kAttentionBackward:
      return 6e-3;
    case OpKind::kFloat8AttentionForward:
      // Exponentials have four bits, and those near the middle between two
      // round apart.
      return output == DType::kBfloat16 ? 2e-2 : 1e-3;
    case OpKind::kAttentionForward:
      return output == DType::kBfloat16 ? 5e-3 : 1e-4;
    case OpKind::kResidualRmsNormForward:  // Its input was rounded.
    case OpKind::kResidualLayerNormForward:
      return output == DType::kBfloat16 ? 3.5e-3 : 1e-3;
    case OpKind::kQuantizeFloat8:
    case OpKind::kTransposeFloat8:
    case OpKind::kWeightAmax:
    case OpKind::kQuantizeWeights:
    case OpKind::kQuantizeFloat8Blocks:
    case OpKind::kQuantizeFloat8Squares:
    case OpKind::kQuantizeAttention:
      return 0;
    case OpKind::kFloat8Gemm:
      return output == DType::kBfloat16 ? 2.5e-3 : 1e-3;
    case OpKind::kFloat8BlockGemm:  // A bias is added to what was rounded.
      return output == DType::kBfloat16 ? 3.5e-3 : 1e-3;
    case OpKind::kRmsNormBackward:
    case OpKind::kLayerNormBackward:
      return output == DType::kBfloat16 ? 2.5e-3 : 1e-4;
    default:
      return output == DType::kBfloat16 ? 2.5e-3 : kOtherOrder;
  }
}

// A wrong row, mask or factor costs far more than any of these.
Tolerance IsolatedTolerance(Precision precision, OpKind kind, DType output) {
  const double error = IsolatedError(precision, kind, output);
  return {error, 5 * error};
}

// The tolerance over a step of some dozens of layers. Gradients pass every op
// twice. AdamW may turn a gradient near zero into a whole learning rate in
// either direction. A learning rate is small beside the weights, so the error
// of weights stays small. Twelve layers were measured at 1.3e-2 in bf16, two at
// 3e-6 in fp32. In 8 bits a number rounds to another neighbour where bf16 moved
// it over the middle between two: four layers were measured at 8.4e-2.
Tolerance ChainedTolerance(Precision precision, bool in_float8, OpKind kind) {
  const bool updates = kind == OpKind::kAdamW;
  if (in_float8) {
    return updates ? Tolerance{2e-1, 3e-1} : Tolerance{1.2e-1, 1.5e-1};
  }
  if (precision == Precision::kFloat32) {
    return updates ? Tolerance{1e-3, 2e-2} : Tolerance{1e-4, 1e-3};
  }
  return updates ? Tolerance{8e-2, 2e-1} : Tolerance{4e-2, 8e-2};
}

// The number of outputs without workspaces.
size_t NumComparedOutputs(const Instruction& instruction) {
  return std::min(instruction.outputs.size(), NumResults(instruction.kind));
}

// Returns the CPU's buffer for the GPU's operand `i`. Only bf16 has master
// weights; the CPU's counterpart is its parameters.
BufferId Counterpart(const Operands& cpu_operands, size_t i) {
  return cpu_operands[i < cpu_operands.size() ? i : 0];
}

struct Difference {
  double relative_l2;
  double max_error;
};

// Returns 0 for zero over zero, and infinity for anything else over zero.
double Ratio(double difference, double size) {
  return difference == 0 ? 0 : difference / size;
}

Difference Measure(const std::vector<float>& gpu,
                   const std::vector<float>& cpu) {
  double squares = 0, difference_squares = 0;
  double largest = 0, largest_difference = 0;
  for (size_t i = 0; i < cpu.size(); ++i) {
    // Equal infinities (a maximum of nothing) do not differ.
    const double difference =
        gpu[i] == cpu[i] ? 0 : double{gpu[i]} - double{cpu[i]};
    if (std::isnan(difference)) return {difference, difference};
    squares += std::isfinite(cpu[i]) ? double{cpu[i]} * double{cpu[i]} : 0;
    difference_squares += difference * difference;
    largest = std::max(largest, std::abs(double{cpu[i]}));
    largest_difference = std::max(largest_difference, std::abs(difference));
  }
  return {Ratio(std::sqrt(difference_squares), std::sqrt(squares)),
          Ratio(largest_difference, largest)};
}

// Turns the stored numbers of a copy [rows, cols] with scales for blocks into
// what they mean. units: [cols / kFloat8Block, rows].
void DecodeBlocks(int64_t rows, int64_t cols, const std::vector<float>& units,
                  std::vector<float>* numbers) {
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t col = 0; col < cols; ++col) {
      (*numbers)[row * cols + col] *= units[col / kFloat8Block * rows + row];
    }
  }
}

// The same of output `i` of a kQuantizeAttention: q, k or v.
void DecodeAttentionCopy(const AttentionAttributes& a, size_t i,
                         const std::vector<float>& units,
                         std::vector<float>* numbers) {
  const auto size = static_cast<int64_t>(numbers->size());
  if (i == 2) {
    // Block after block.
    constexpr int64_t kBlock = kFloat8KeyBlock;
    for (int64_t n = 0; n < size; ++n) {
      (*numbers)[n] *= units[n / (kBlock * a.head_dim)];
    }
    return;
  }
  const int64_t heads = i == 0 ? a.num_heads : a.num_kv_heads;
  const int64_t block = i == 0 ? kFloat8QueryBlock : kFloat8KeyBlock;
  const int64_t num_blocks = (a.sequence_length + block - 1) / block;
  for (int64_t n = 0; n < size; ++n) {
    const int64_t head = n / a.head_dim % heads;
    const int64_t token = n / a.head_dim / heads;
    const int64_t sequence = token / a.sequence_length;
    (*numbers)[n] *= units[(sequence * heads + head) * num_blocks +
                           token % a.sequence_length / block];
  }
}

// Whether numbers in 8 bits stand between the ops of a step.
bool ComputesInFloat8(const Program& program) {
  return IsFloat8(program.layout.gemm_format) ||
         std::any_of(program.instructions.begin(), program.instructions.end(),
                     [](const Instruction& in) {
                       return in.kind == OpKind::kFloat8AttentionForward;
                     });
}

class StepComparison {
 public:
  StepComparison(Stepper& cpu, Stepper& gpu, CompareMode mode)
      : cpu_(cpu),
        gpu_(gpu),
        mode_(mode),
        in_float8_(ComputesInFloat8(gpu.program())) {}

  absl::StatusOr<Comparison> Run() {
    const Layout& layout = gpu_.program().layout;
    result_ = {.mode = mode_,
               .precision = layout.precision,
               .gemm_format = layout.gemm_format};
    RETURN_IF_ERROR(CheckCorrespondence());
    RETURN_IF_ERROR(ShareState());
    const size_t count = cpu_.program().instructions.size();
    for (size_t id = 0; id < count; ++id) {
      RETURN_IF_ERROR(RunInstruction(static_cast<InstructionId>(id)));
    }
    if (mode_ == CompareMode::kChained) RETURN_IF_ERROR(ReadScalars());
    return std::move(result_);
  }

 private:
  absl::Status CheckCorrespondence() const {
    const auto& cpu = cpu_.program().instructions;
    const auto& gpu = gpu_.program().instructions;
    if (cpu.size() != gpu.size()) {
      return absl::InternalError(
          absl::StrCat("the Programs have ", cpu.size(), " and ", gpu.size(),
                       " instructions; they can only be compared one to one"));
    }
    for (size_t id = 0; id < cpu.size(); ++id) {
      if (cpu[id].kind != gpu[id].kind || cpu[id].name != gpu[id].name ||
          cpu[id].microbatch_idx != gpu[id].microbatch_idx) {
        return absl::InternalError(absl::StrCat("instruction ", id, " is ",
                                                cpu[id].name, " on the CPU, ",
                                                gpu[id].name, " on the GPU"));
      }
    }
    return absl::OkStatus();
  }

  // Moments and master weights lie bucket after bucket.
  absl::Status ShareState() {
    const Program& from = cpu_.program();
    const Program& to = gpu_.program();
    ASSIGN_OR_RETURN(const std::vector<float> exact, ReadParameters(cpu_));
    RETURN_IF_ERROR(WriteParameters(exact, gpu_));
    ASSIGN_OR_RETURN(const std::vector<float> parameters, ReadParameters(gpu_));
    RETURN_IF_ERROR(WriteParameters(parameters, cpu_));
    if (to.master_buffer >= 0) {
      std::vector<float> master;
      for (const Bucket& bucket : from.parameters.buckets) {
        const auto begin = parameters.begin() + bucket.offset;
        master.insert(master.end(), begin, begin + bucket.num_elements);
      }
      RETURN_IF_ERROR(gpu_.Write(to.master_buffer, master));
    }
    RETURN_IF_ERROR(Copy(from.exp_avg_buffer, to.exp_avg_buffer));
    RETURN_IF_ERROR(Copy(from.exp_avg_sq_buffer, to.exp_avg_sq_buffer));
    return Copy(from.scalars_buffer, to.scalars_buffer);
  }

  absl::Status RunInstruction(InstructionId id) {
    const Instruction& on_cpu = InstructionOf(cpu_, id);
    const Instruction& on_gpu = InstructionOf(gpu_, id);
    const size_t num_outputs = NumComparedOutputs(on_gpu);
    if (mode_ == CompareMode::kIsolated) {
      for (size_t i = 0; i < on_gpu.inputs.size(); ++i) {
        RETURN_IF_ERROR(Copy(Counterpart(on_cpu.inputs, i), on_gpu.inputs[i]));
      }
      // Many outputs are added to, or written in part.
      for (size_t i = 0; i < num_outputs; ++i) {
        RETURN_IF_ERROR(
            Copy(Counterpart(on_cpu.outputs, i), on_gpu.outputs[i]));
      }
    }
    RETURN_IF_ERROR(gpu_.Run(id));
    RETURN_IF_ERROR(cpu_.Run(id));
    for (size_t i = 0; i < num_outputs; ++i) {
      RETURN_IF_ERROR(CompareOutput(id, i));
    }
    return absl::OkStatus();
  }

  absl::Status CompareOutput(InstructionId id, size_t i) {
    const Instruction& on_gpu = InstructionOf(gpu_, id);
    const BufferId cpu_buffer = Counterpart(InstructionOf(cpu_, id).outputs, i);
    const Buffer& buffer = BufferOf(gpu_, on_gpu.outputs[i]);
    // Op after op, units are compared through the numbers that they multiply.
    // By itself the unit of a block of zeros says nothing: where the other side
    // has a rounding in place of a zero, it has a wholly different one.
    if (mode_ == CompareMode::kChained && buffer.dtype == DType::kFloat32 &&
        (on_gpu.kind == OpKind::kQuantizeFloat8Blocks ||
         on_gpu.kind == OpKind::kQuantizeAttention)) {
      return absl::OkStatus();
    }
    ASSIGN_OR_RETURN(std::vector<float> expected, cpu_.Read(cpu_buffer));
    ASSIGN_OR_RETURN(std::vector<float> actual, gpu_.Read(on_gpu.outputs[i]));
    RETURN_IF_ERROR(CheckSizes(actual.size(), expected.size(), buffer));
    if (mode_ == CompareMode::kChained && buffer.dtype == DType::kFloat8E4m3) {
      if (on_gpu.kind == OpKind::kQuantizeFloat8Blocks) {
        RETURN_IF_ERROR(DecodeBoth(id, i, &expected, &actual));
      } else if (on_gpu.kind == OpKind::kQuantizeAttention) {
        RETURN_IF_ERROR(DecodeHeads(id, i, &expected, &actual));
      }
    }
    const Difference difference = Measure(actual, expected);
    // The largest magnitude is that of numbers as they are stored.
    const bool is_amax =
        FindsAmax(on_gpu.attributes) && i + 1 == on_gpu.outputs.size();
    const DType rounded_to =
        is_amax ? ActivationType(gpu_.program().layout.precision)
                : buffer.dtype;
    OutputComparison output = {
        .instruction = id,
        .kind = on_gpu.kind,
        .phase = on_gpu.phase,
        .microbatch_idx = on_gpu.microbatch_idx,
        .name = on_gpu.name,
        .buffer = buffer.name,
        .relative_l2 = difference.relative_l2,
        .max_error = difference.max_error,
        .tolerance = ToleranceOf(mode_, gpu_.program().layout.precision,
                                 in_float8_, on_gpu.kind, rounded_to)};
    // One number may be as far off as the worst of many.
    if (is_amax) output.tolerance.relative_l2 = output.tolerance.max_error;
    // Written so that what is not a number is not within.
    output.within = output.relative_l2 <= output.tolerance.relative_l2 &&
                    output.max_error <= output.tolerance.max_error;
    result_.outputs.push_back(std::move(output));
    // So that the next op reads the same on both sides. The weights after the
    // step are read by nobody.
    if (mode_ == CompareMode::kIsolated && on_gpu.kind != OpKind::kAdamW) {
      RoundTo(buffer.dtype, &expected);
      RETURN_IF_ERROR(cpu_.Write(cpu_buffer, expected));
    }
    return absl::OkStatus();
  }

  // Where a block's largest number moves, its unit and all its stored numbers
  // do, and what they mean stays. The units are the output after the copy.
  absl::Status DecodeBoth(InstructionId id, size_t i, std::vector<float>* cpu,
                          std::vector<float>* gpu) {
    const Instruction& on_gpu = InstructionOf(gpu_, id);
    const auto& copied = std::get<QuantizeAttributes>(on_gpu.attributes);
    const bool is_transposed = !copied.keeps_rows || i > 0;
    const int64_t rows = is_transposed ? copied.cols : copied.rows;
    const int64_t cols = is_transposed ? copied.rows : copied.cols;
    ASSIGN_OR_RETURN(
        const std::vector<float> cpu_units,
        cpu_.Read(Counterpart(InstructionOf(cpu_, id).outputs, i + 1)));
    ASSIGN_OR_RETURN(const std::vector<float> gpu_units,
                     gpu_.Read(on_gpu.outputs[i + 1]));
    DecodeBlocks(rows, cols, cpu_units, cpu);
    DecodeBlocks(rows, cols, gpu_units, gpu);
    return absl::OkStatus();
  }

  // The same of copies that attention reads. Their units are the output three
  // after the copy.
  absl::Status DecodeHeads(InstructionId id, size_t i, std::vector<float>* cpu,
                           std::vector<float>* gpu) {
    const Instruction& on_gpu = InstructionOf(gpu_, id);
    const auto& a = std::get<AttentionAttributes>(on_gpu.attributes);
    ASSIGN_OR_RETURN(
        const std::vector<float> cpu_units,
        cpu_.Read(Counterpart(InstructionOf(cpu_, id).outputs, i + 3)));
    ASSIGN_OR_RETURN(const std::vector<float> gpu_units,
                     gpu_.Read(on_gpu.outputs[i + 3]));
    DecodeAttentionCopy(a, i, cpu_units, cpu);
    DecodeAttentionCopy(a, i, gpu_units, gpu);
    return absl::OkStatus();
  }

  absl::Status Copy(BufferId from, BufferId to) {
    ASSIGN_OR_RETURN(const std::vector<float> values, cpu_.Read(from));
    const Buffer& buffer = BufferOf(gpu_, to);
    RETURN_IF_ERROR(CheckSizes(static_cast<size_t>(NumElements(buffer)),
                               values.size(), buffer));
    return gpu_.Write(to, values);
  }

  static absl::Status CheckSizes(size_t on_gpu, size_t on_cpu,
                                 const Buffer& buffer) {
    if (on_gpu == on_cpu) return absl::OkStatus();
    return absl::InternalError(absl::StrCat(buffer.name, " has ", on_cpu,
                                            " elements on the CPU, ", on_gpu,
                                            " on the GPU"));
  }

  absl::Status ReadScalars() {
    ASSIGN_OR_RETURN(const std::vector<float> cpu,
                     cpu_.Read(cpu_.program().scalars_buffer));
    ASSIGN_OR_RETURN(const std::vector<float> gpu,
                     gpu_.Read(gpu_.program().scalars_buffer));
    result_.cpu_loss = cpu[kLossScalar];
    result_.gpu_loss = gpu[kLossScalar];
    result_.cpu_gradient_norm = std::sqrt(cpu[kSquaredNormScalar]);
    result_.gpu_gradient_norm = std::sqrt(gpu[kSquaredNormScalar]);
    return absl::OkStatus();
  }

  static const Instruction& InstructionOf(const Stepper& stepper,
                                          InstructionId id) {
    return stepper.program().instructions[static_cast<size_t>(id)];
  }
  static const Buffer& BufferOf(const Stepper& stepper, BufferId id) {
    return stepper.program().buffers[static_cast<size_t>(id)];
  }

  Stepper& cpu_;
  Stepper& gpu_;
  const CompareMode mode_;
  const bool in_float8_;
  Comparison result_;
};

}  // namespace

const char* CompareModeName(CompareMode mode) {
  return mode == CompareMode::kIsolated ? "isolated" : "chained";
}

Tolerance ToleranceOf(CompareMode mode, Precision precision, bool in_float8,
                      OpKind kind, DType output) {
  // Copied and counted, not computed.
  if (output == DType::kInt32) return {0, 0};
  return mode == CompareMode::kIsolated
             ? IsolatedTolerance(precision, kind, output)
             : ChainedTolerance(precision, in_float8, kind);
}

std::optional<OutputComparison> Comparison::FirstDifference() const {
  for (const OutputComparison& output : outputs) {
    if (!output.within) return output;
  }
  return std::nullopt;
}

absl::StatusOr<Comparison> CompareSteps(Stepper& cpu, Stepper& gpu,
                                        CompareMode mode) {
  CHECK(cpu.program().layout.precision == Precision::kFloat32);
  return StepComparison(cpu, gpu, mode).Run();
}

}  // namespace millrace
