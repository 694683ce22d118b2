#include "worker/cpu/ops.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "gtest/gtest.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/status.h"
#include "planner/program/op_table.h"
#include "tests/kernels/gpu_testing.h"
#include "tests/worker/cuda/ops/op_cases.h"
#include "tests/worker/cuda/ops/op_comparison.h"
#include "tests/worker/cuda/ops/op_operands.h"
#include "worker/cuda/device/op.h"
#include "worker/cuda/ops/kernel_cache.h"
#include "worker/cuda/ops/ops.h"

namespace millrace {
namespace {

using Values = std::vector<double>;
constexpr int64_t kStep = 3;
constexpr double kLearningRate = 1e-2;

// The batches of both backends: two micro-batches of ids that tell places
// apart.
class Batches : public BatchSource {
 public:
  absl::Status Fill(const BatchRequest& request,
                    const BatchPointers& out) override {
    const int64_t length = 17;
    for (int64_t i = 0; i < request.num_sequences * length; ++i) {
      const int64_t place = request.first_sequence_idx * length + i;
      out.tokens[i] = static_cast<int32_t>(place);
      out.targets[i] = static_cast<int32_t>(1000 + place);
      out.document_starts[i] = static_cast<int32_t>(2000 + place);
    }
    return absl::OkStatus();
  }
};

TrainingSpec TrainingOf(const OpCase& op) {
  TrainingSpec training;
  training.gradient_clip_norm = op.clip_norm;
  return training;
}

// Whether the kernel keeps log-sum-exps sequence by sequence.
bool KeepsLseBySequence(const OpCase& op, Precision precision) {
  const auto* a = std::get_if<AttentionAttributes>(&op.attributes);
  return a != nullptr && precision == Precision::kBfloat16 &&
         op.num_documents == 0 && a->head_dim >= 64;
}
// The inverse of HeadsFirst().
Values SequencesFirst(const Values& lse, const AttentionAttributes& a) {
  Values places(lse.size());
  for (size_t i = 0; i < places.size(); ++i) places[i] = static_cast<double>(i);
  places = HeadsFirst(places, a);
  Values out(lse.size());
  for (size_t i = 0; i < out.size(); ++i) {
    out[static_cast<size_t>(places[i])] = lse[i];
  }
  return out;
}

// Puts operands, as bytes of their types, where `write(buffer, bytes)` says,
// and takes results from where `read(buffer, bytes)` says. Workspaces stay as
// they are.
template <typename Write>
absl::Status WriteOperands(const Program& program, const OpOperands& operands,
                           const Write& write) {
  const Instruction& in = program.instructions.back();
  auto narrow_and_write = [&](BufferId id, const Values& values) {
    const Buffer& buffer = program.buffers[id];
    if (values.empty()) return absl::OkStatus();
    std::vector<std::byte> bytes(static_cast<size_t>(buffer.bytes));
    NarrowElements(absl::MakeSpan(values).subspan(
                       0, static_cast<size_t>(buffer.dims.front())),
                   buffer.dtype, bytes.data());
    return write(buffer, bytes);
  };
  for (size_t i = 0; i < in.outputs.size(); ++i) {
    if (!IsResult(in.kind, i)) continue;
    RETURN_IF_ERROR(narrow_and_write(in.outputs[i], operands.outputs[i]));
  }
  for (size_t i = 0; i < in.inputs.size(); ++i) {
    RETURN_IF_ERROR(narrow_and_write(in.inputs[i], operands.inputs[i]));
  }
  return absl::OkStatus();
}
template <typename Read>
absl::StatusOr<std::vector<Values>> ReadOutputs(const Program& program,
                                                const Read& read) {
  const Instruction& in = program.instructions.back();
  std::vector<Values> outputs(in.outputs.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!IsResult(in.kind, i)) continue;
    const Buffer& buffer = program.buffers[in.outputs[i]];
    std::vector<std::byte> bytes(static_cast<size_t>(buffer.bytes));
    RETURN_IF_ERROR(read(buffer, bytes));
    outputs[i] = WidenElements(buffer.dtype, bytes.data(), buffer.dims.front());
  }
  return outputs;
}

absl::StatusOr<std::vector<Values>> RunOnCpu(const OpCase& op,
                                             OpOperands operands) {
  const Program program = MakeOpProgram(op, Precision::kFloat32);
  // The weights of tokens come last, on a GPU behind the logits that it kept.
  const size_t num_inputs = program.instructions.back().inputs.size();
  if (op.layout.trains_preferences() && operands.inputs.size() > num_inputs) {
    operands.inputs[num_inputs - 1] = operands.inputs.back();
    operands.inputs.resize(num_inputs);
  }
  ASSIGN_OR_RETURN(MemoryBlock persistent, MemoryBlock::Allocate(0));
  ASSIGN_OR_RETURN(MemoryBlock step,
                   MemoryBlock::Allocate(program.step_arena_bytes));
  const Arenas arenas{std::move(persistent), std::move(step)};
  RETURN_IF_ERROR(WriteOperands(
      program, operands, [&](const Buffer& buffer, const auto& bytes) {
        std::copy(bytes.begin(), bytes.end(), arenas.At(buffer));
        return absl::OkStatus();
      }));
  KernelCache kernels(1);
  const StepInputs inputs{kStep, kLearningRate};
  const TrainingSpec training = TrainingOf(op);
  Batches batches;
  const CommunicatorSet communicators;
  ASSIGN_OR_RETURN(const BoundOp bound,
                   BindOp({.program = &program,
                           .layout = program.layout,
                           .coordinates = op.coordinates,
                           .arenas = &arenas,
                           .kernels = &kernels,
                           .inputs = &inputs,
                           .training = &training,
                           .batches = &batches,
                           .communicators = &communicators},
                          program.instructions.back()));
  RETURN_IF_ERROR(kernels.AllocateScratch());
  RETURN_IF_ERROR(bound());
  return ReadOutputs(program, [&](const Buffer& buffer, auto& bytes) {
    std::copy_n(arenas.At(buffer), bytes.size(), bytes.begin());
    return absl::OkStatus();
  });
}

// The inputs that the trainer would have put on the device before the step.
struct DeviceInputs {
  explicit DeviceInputs(const OpOperands& operands)
      : ids(3),
        offsets(ToDevice(operands.document_offsets.empty()
                             ? std::vector<int32_t>(1)
                             : operands.document_offsets)),
        optimizer(ToDevice(std::vector<AdamWStep>{{kLearningRate, kStep}})) {
    std::vector<int32_t> host[3];
    for (auto& values : host) values.resize(6 * 17);
    const absl::Status filled =
        Batches().Fill({.first_sequence_idx = 0, .num_sequences = 6},
                       {host[0].data(), host[1].data(), host[2].data()});
    EXPECT_TRUE(filled.ok());
    for (int i = 0; i < 3; ++i)
      ids[i] = std::make_unique<Ids>(ToDevice(host[i]));
  }
  CudaStepInputs Pointers(const OpOperands& operands) {
    return {.tokens = ids[0]->data(),
            .targets = ids[1]->data(),
            .document_starts = ids[2]->data(),
            .document_offsets = offsets.data(),
            .max_documents =
                static_cast<int64_t>(operands.document_offsets.size()) - 1,
            .optimizer = optimizer.data()};
  }

  using Ids = DeviceBuffer<int32_t>;
  std::vector<std::unique_ptr<Ids>> ids;
  DeviceBuffer<int32_t> offsets;
  DeviceBuffer<AdamWStep> optimizer;
};

// Captures the ops as a graph, runs that once and waits.
absl::Status RunAsGraph(const std::vector<CudaOp>& ops) {
  cudaStream_t stream;
  RETURN_IF_ERROR(CudaStatus(
      cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream"));
  RETURN_IF_ERROR(CudaStatus(
      cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
      "begin a capture"));
  absl::Status enqueued;
  for (const CudaOp& op : ops) enqueued.Update(op(stream));
  cudaGraph_t graph = nullptr;
  const absl::Status captured =
      CudaStatus(cudaStreamEndCapture(stream, &graph), "capture");
  RETURN_IF_ERROR(enqueued);
  RETURN_IF_ERROR(captured);
  cudaGraphExec_t exec;
  RETURN_IF_ERROR(CudaStatus(cudaGraphInstantiate(&exec, graph, 0), "make"));
  RETURN_IF_ERROR(CudaStatus(cudaGraphLaunch(exec, stream), "launch"));
  RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(stream), "run the op"));
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  return CudaStatus(cudaStreamDestroy(stream), "destroy the stream");
}

CudaKernelCache* Kernels() {
  static auto* const kernels = new auto(CudaKernelCache::Create());
  CHECK(kernels->ok()) << kernels->status();
  return kernels->value().get();
}

absl::StatusOr<std::vector<Values>> RunOnGpu(const OpCase& op,
                                             const Program& program,
                                             OpOperands operands) {
  const Instruction& in = program.instructions.back();
  const Precision precision = program.layout.precision;
  const auto* attention = std::get_if<AttentionAttributes>(&op.attributes);
  if (KeepsLseBySequence(op, precision) &&
      in.kind == OpKind::kAttentionBackward) {
    operands.inputs[3] = SequencesFirst(operands.inputs[3], *attention);
  }
  ASSIGN_OR_RETURN(const DeviceArenas arenas,
                   DeviceArenas::Allocate(256, program.step_arena_bytes));
  // Whatever nobody writes is not a number.
  RETURN_IF_ERROR(CudaStatus(
      cudaMemset(arenas.At({.name = "arena",
                            .arena = Arena::kStep,
                            .offset_bytes = 0,
                            .bytes = program.step_arena_bytes}),
                 0xFF, static_cast<size_t>(program.step_arena_bytes)),
      "poison the arena"));
  RETURN_IF_ERROR(WriteOperands(
      program, operands, [&](const Buffer& buffer, const auto& bytes) {
        return CudaStatus(cudaMemcpy(arenas.At(buffer), bytes.data(),
                                     bytes.size(), cudaMemcpyHostToDevice),
                          "copy an operand");
      }));
  DeviceInputs device_inputs(operands);
  const CudaStepInputs inputs = device_inputs.Pointers(operands);
  const TrainingSpec training = TrainingOf(op);
  const CudaOpContext context = {.program = &program,
                                 .layout = program.layout,
                                 .coordinates = op.coordinates,
                                 .arenas = &arenas,
                                 .kernels = Kernels(),
                                 .inputs = &inputs,
                                 .training = &training,
                                 .communicators = nullptr,
                                 .num_documents = op.num_documents,
                                 .deterministic = op.deterministic};
  std::vector<CudaOp> ops;
  for (const Instruction& instruction : program.instructions) {
    ASSIGN_OR_RETURN(CudaOp bound, BindCudaOp(context, instruction));
    ops.push_back(std::move(bound));
  }
  // The op's stream is not ordered with the copies.
  RETURN_IF_ERROR(CudaStatus(cudaDeviceSynchronize(), "wait for operands"));
  RETURN_IF_ERROR(RunAsGraph(ops));
  ASSIGN_OR_RETURN(std::vector<Values> outputs,
                   ReadOutputs(program, [&](const Buffer& buffer, auto& bytes) {
                     return CudaStatus(
                         cudaMemcpy(bytes.data(), arenas.At(buffer),
                                    bytes.size(), cudaMemcpyDeviceToHost),
                         "copy a result");
                   }));
  if (KeepsLseBySequence(op, precision) &&
      in.kind == OpKind::kAttentionForward) {
    outputs[1] = HeadsFirst(outputs[1], *attention);
  }
  return outputs;
}

// By output of the GPU's instruction, what it should be: what the CPU says, but
// for the master weights, which the CPU calls parameters, and their bf16 copy
// alone, which it has not.
std::vector<Values> Expected(const OpCase& op, const OpOperands& operands,
                             std::vector<Values> on_cpu, size_t num_outputs) {
  if (op.kind != OpKind::kAdamW || num_outputs == on_cpu.size()) return on_cpu;
  const auto& a = std::get<OptimizerAttributes>(op.attributes);
  const int64_t share =
      a.data_sharded ? a.num_elements / op.layout.data : a.num_elements;
  on_cpu.push_back(operands.inputs[6]);
  std::copy_n(
      on_cpu[0].begin() + (a.data_sharded ? op.coordinates.data * share : 0),
      share, on_cpu[3].begin());
  return on_cpu;
}
std::vector<Values> ExpectedCast(const OpCase& op, const OpOperands& operands) {
  const auto& a = std::get<OptimizerAttributes>(op.attributes);
  const int64_t share =
      a.data_sharded ? a.num_elements / op.layout.data : a.num_elements;
  Values parameters = operands.outputs[0];
  std::copy_n(
      operands.inputs[0].begin(), share,
      parameters.begin() + (a.data_sharded ? op.coordinates.data * share : 0));
  return {parameters};
}

// Worst of each kind and output, to print.
class Summary {
 public:
  void Add(const OpCase& op, size_t output, double error, double tolerance) {
    Row& row = rows_[absl::StrCat(OpKindName(op.kind), "[", output, "]")];
    ++row.num_cases;
    row.tolerance = std::max(row.tolerance, tolerance);
    if (error <= row.error) return;
    row.error = error;
    row.name = op.Name();
  }
  void Print(Precision precision) const {
    std::printf("%s: largest relative errors\n", PrecisionName(precision));
    for (const auto& [what, row] : rows_) {
      std::printf("%-28s %3d cases %9.2e of %7.1e %s\n", what.c_str(),
                  row.num_cases, row.error, row.tolerance, row.name.c_str());
    }
  }

 private:
  struct Row {
    int num_cases = 0;
    double error = -1;
    double tolerance = 0;
    std::string name;
  };
  std::map<std::string, Row> rows_;
};

class CudaOpsTest : public testing::TestWithParam<Precision> {};

// Goal: every op kind, bound for the GPU, does what it does on the CPU, with
// all that is around it: packed documents, shards of the vocabulary and of
// buckets, accumulation. Method: each op as a graph of its own over an arena
// whose outputs and gaps are NaN, at shapes that fast kernels take and at odd
// ones, against the CPU's fp32 kernels on the same inputs, which bf16 holds
// exactly.
TEST_P(CudaOpsTest, ComputesWhatTheCpuDoes) {
  const Precision precision = GetParam();
  Summary summary;
  std::set<OpKind> kinds;
  for (const OpCase& op : AllOpCases()) {
    // fp32 has no bf16 copies to make.
    if (precision == Precision::kFloat32 &&
        op.kind == OpKind::kCastParameters) {
      continue;
    }
    kinds.insert(op.kind);
    SCOPED_TRACE(op.Name());
    const Program program = MakeOpProgram(op, precision);
    const Instruction& in = program.instructions.back();
    const OpOperands operands = MakeOperands(op, program);
    std::vector<Values> expected;
    if (op.kind == OpKind::kCastParameters) {
      expected = ExpectedCast(op, operands);
    } else {
      const auto on_cpu = RunOnCpu(op, operands);
      ASSERT_TRUE(on_cpu.ok()) << on_cpu.status();
      expected = Expected(op, operands, *on_cpu, in.outputs.size());
    }
    const auto actual = RunOnGpu(op, program, operands);
    ASSERT_TRUE(actual.ok()) << actual.status();
    for (size_t i = 0; i < actual->size(); ++i) {
      if (!IsResult(op.kind, i)) continue;
      const OpDifference difference =
          CompareElements(expected[i], (*actual)[i]);
      const double tolerance = OpTolerance(
          in, i, op.fp32_parameters ? Precision::kFloat32 : precision);
      summary.Add(op, i, difference.relative_error, tolerance);
      EXPECT_LE(difference.relative_error, tolerance)
          << "output " << i << ": " << OpDifferenceToString(difference);
    }
  }
  summary.Print(precision);
  for (int kind = 0; kind < kNumExecutedOpKinds; ++kind) {
    const auto op = static_cast<OpKind>(kind);
    const bool is_elsewhere =
        IsCollective(op) || IsTransfer(op) ||
        // compare_test.cc has copies in 8 bits and their products, and weights
        // in 8 bits.
        MakesFloat8Copies(op) || IsFloat8Product(op) ||
        op == OpKind::kQuantizeAttention ||
        op == OpKind::kFloat8AttentionForward ||
        op == OpKind::kTransposeFloat8 || op == OpKind::kWeightAmax ||
        op == OpKind::kQuantizeWeights ||
        (op == OpKind::kCastParameters && precision == Precision::kFloat32);
    EXPECT_EQ(kinds.contains(op), !is_elsewhere) << OpKindName(op);
  }
}

// Goal: equal runs give equal bits where the context asks for it.
TEST_P(CudaOpsTest, RepeatsBitsWhereAsked) {
  for (const OpCase& op : AllOpCases()) {
    if (!op.deterministic) continue;
    SCOPED_TRACE(op.Name());
    const Program program = MakeOpProgram(op, GetParam());
    const OpOperands operands = MakeOperands(op, program);
    const auto first = RunOnGpu(op, program, operands);
    ASSERT_TRUE(first.ok()) << first.status();
    for (int run = 0; run < 3; ++run) {
      const auto again = RunOnGpu(op, program, operands);
      ASSERT_TRUE(again.ok()) << again.status();
      EXPECT_EQ((*again)[0], (*first)[0]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Precisions, CudaOpsTest,
                         testing::Values(Precision::kFloat32,
                                         Precision::kBfloat16),
                         [](const testing::TestParamInfo<Precision>& info) {
                           return std::string(PrecisionName(info.param));
                         });

// Goal: the planner's tables say of GPUs what these have: binders for op kinds,
// and kernels for number formats. Method: all rows of both tables.
TEST(CudaBindersTest, GpusRunWhatTheTablesSay) {
  const BoundKinds& bound = AllCudaBinders().bound();
  for (int i = 0; i < kNumOpKinds; ++i) {
    const auto kind = static_cast<OpKind>(i);
    EXPECT_EQ(bound.Has(kind), Describe(kind).backends.Has(Backend::kCuda))
        << OpKindName(kind);
  }
  for (const PrecisionRecipe& recipe : PrecisionRecipes()) {
    EXPECT_EQ(bound.Has(recipe), recipe.backends.Has(Backend::kCuda))
        << recipe.name;
  }
}

// Goal: an operand too small for its kernel, and more documents than the step's
// inputs hold, are refused when the op is bound, with the instruction's name.
TEST(CudaOpsRefusalTest, NamesTheInstruction) {
  auto refuse = [](const OpCase& op, Program program, const char* reason) {
    const OpOperands operands =
        MakeOperands(op, MakeOpProgram(op, Precision::kBfloat16));
    const absl::Status status = RunOnGpu(op, program, operands).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    for (const char* part : {"repetition_0", OpKindName(op.kind), reason}) {
      EXPECT_NE(status.message().find(part), absl::string_view::npos) << status;
    }
  };
  const OpCase attention = {"", OpKind::kAttentionBackward,
                            AttentionAttributes{1, 128, 2, 1, 64}};
  Program program = MakeOpProgram(attention, Precision::kBfloat16);
  program.buffers[program.instructions[0].outputs[1]].bytes = 256;
  refuse(attention, program, "workspace.h");

  const OpCase norm = {"", OpKind::kRmsNormBackward,
                       NormAttributes{64, 512, 1e-5}};
  program = MakeOpProgram(norm, Precision::kBfloat16);
  program.buffers[program.scratch_buffer].bytes = 256;
  refuse(norm, program, "workspace.h");

  OpCase documents = attention;
  documents.kind = OpKind::kAttentionForward;
  program = MakeOpProgram(documents, Precision::kBfloat16);
  documents.num_documents = 5;  // Operands are made for none.
  const OpOperands none = MakeOperands(attention, program);
  const absl::Status status = RunOnGpu(documents, program, none).status();
  EXPECT_NE(status.message().find("5 documents"), absl::string_view::npos)
      << status;
}

// Goal: what the kernels hold on the device is counted, and made once.
TEST(CudaKernelCacheTest, CountsItsMemory) {
  auto cache = CudaKernelCache::Create();
  ASSERT_TRUE(cache.ok()) << cache.status();
  const int64_t before = (*cache)->bytes();
  EXPECT_GT(before, 0);
  const AttentionAttributes shape = {.num_sequences = 1,
                                     .sequence_length = 1 << 12,
                                     .num_heads = 1,
                                     .num_kv_heads = 1,
                                     .head_dim = 128,
                                     .rope_theta = 5e5};
  const auto table = (*cache)->RopeTable(shape);
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_EQ(*(*cache)->RopeTable(shape), *table);
  const auto scratch = (*cache)->Scratch(100 << 20);
  ASSERT_TRUE(scratch.ok()) << scratch.status();
  EXPECT_EQ(*(*cache)->Scratch(1), *scratch);
  EXPECT_EQ((*cache)->bytes() - before, (int64_t{2} + 100) << 20);
}

}  // namespace
}  // namespace millrace
