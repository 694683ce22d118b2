#include "worker/compare/compare.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "planner/lower/lower.h"
#include "tests/e2e/equivalence_batches.h"
#include "tests/e2e/equivalence_job.h"
#include "worker/cpu/stepper.h"

namespace millrace {
namespace {

using testing::HasSubstr;

Program OneRankProgram() {
  const Layout layout = {.micro_batch = 2, .num_microbatches = 2};
  absl::StatusOr<Program> program =
      BuildTrainingProgram(SmallJob().model, layout, 0);
  EXPECT_TRUE(program.ok()) << program.status();
  return *std::move(program);
}

// The same, with activations and weights in bf16 as a GPU keeps them; only the
// types of the buffers differ.
Program InBf16(Program program) {
  program.layout.precision = Precision::kBfloat16;
  const Buffer parameters =
      program.buffers[static_cast<size_t>(program.parameters_buffer)];
  for (Buffer& buffer : program.buffers) {
    const bool is_parameter =
        buffer.arena == Arena::kPersistent &&
        buffer.offset_bytes >= parameters.offset_bytes &&
        buffer.offset_bytes < parameters.offset_bytes + parameters.bytes;
    const bool is_statistic = buffer.name.find("rstd") != std::string::npos ||
                              buffer.name.find("lse") != std::string::npos;
    if (buffer.dtype == DType::kFloat32 && !is_statistic &&
        (is_parameter || buffer.arena == Arena::kStep)) {
      buffer.dtype = DType::kBfloat16;
    }
  }
  return program;
}

// Stands in for a GPU: the CPU's kernels behind a Program of its own, whose
// buffers round what is put into them; `fault` may spoil what an instruction
// wrote.
class StandIn : public Stepper {
 public:
  using Fault = std::function<void(const Instruction&, std::vector<float>*)>;

  StandIn(std::unique_ptr<CpuStepper> cpu, const Program* program, Fault fault)
      : cpu_(std::move(cpu)), program_(program), fault_(std::move(fault)) {}

  const Program& program() const override { return *program_; }

  absl::Status Run(InstructionId id) override {
    RETURN_IF_ERROR(cpu_->Run(id));
    const Instruction& instruction =
        program_->instructions[static_cast<size_t>(id)];
    for (const BufferId output : instruction.outputs) {
      ASSIGN_OR_RETURN(std::vector<float> values, cpu_->Read(output));
      if (fault_ && output == instruction.outputs[0]) {
        fault_(instruction, &values);
      }
      RETURN_IF_ERROR(Write(output, values));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<float>> Read(BufferId id) override {
    return cpu_->Read(id);
  }
  absl::Status Write(BufferId id, const std::vector<float>& values) override {
    std::vector<float> rounded = values;
    RoundTo(program_->buffers[static_cast<size_t>(id)].dtype, &rounded);
    return cpu_->Write(id, rounded);
  }

 private:
  std::unique_ptr<CpuStepper> cpu_;
  const Program* program_;
  Fault fault_;
};

class CompareTest : public testing::Test {
 protected:
  std::unique_ptr<CpuStepper> NewCpu() {
    absl::StatusOr<std::unique_ptr<CpuStepper>> cpu = CpuStepper::Create(
        {.program = &program_, .job = job_, .batches = &batches_});
    EXPECT_TRUE(cpu.ok()) << cpu.status();
    return *std::move(cpu);
  }

  absl::StatusOr<Comparison> Compare(const Program& gpu_program,
                                     CompareMode mode,
                                     StandIn::Fault fault = nullptr) {
    const std::unique_ptr<CpuStepper> cpu = NewCpu();
    StandIn gpu(NewCpu(), &gpu_program, std::move(fault));
    return CompareSteps(*cpu, gpu, mode);
  }

  const JobSpec job_ = SmallJob();
  SyntheticBatches batches_{job_.model.vocab_size, job_.model.sequence_length};
  const Program program_ = OneRankProgram();
  const Program bf16_program_ = InBf16(program_);
};

// Goal: equal backends do not differ, in either mode, and every instruction is
// looked at. Method: the CPU against itself; errors must be zero.
TEST_F(CompareTest, EqualBackendsAreEqual) {
  for (const CompareMode mode :
       {CompareMode::kIsolated, CompareMode::kChained}) {
    const auto comparison = Compare(program_, mode);
    ASSERT_TRUE(comparison.ok()) << comparison.status();
    std::set<InstructionId> seen;
    for (const OutputComparison& output : comparison->outputs) {
      EXPECT_EQ(output.relative_l2, 0) << output.name;
      EXPECT_EQ(output.max_error, 0) << output.name;
      seen.insert(output.instruction);
    }
    EXPECT_EQ(seen.size(), program_.instructions.size());
  }
}

// Goal: what bf16 does to a healthy backend is within tolerance. Method: the
// CPU's kernels, with every buffer rounded that is bf16 on a GPU; something
// must have been rounded.
TEST_F(CompareTest, RoundingIsWithinTolerance) {
  for (const CompareMode mode :
       {CompareMode::kIsolated, CompareMode::kChained}) {
    const auto comparison = Compare(bf16_program_, mode);
    ASSERT_TRUE(comparison.ok()) << comparison.status();
    EXPECT_FALSE(comparison->FirstDifference().has_value())
        << ComparisonToText(*comparison);
    double largest = 0;
    for (const OutputComparison& output : comparison->outputs) {
      largest = std::max(largest, output.relative_l2);
    }
    EXPECT_GT(largest, 1e-3);
    if (mode == CompareMode::kChained) {
      EXPECT_NEAR(comparison->gpu_loss, comparison->cpu_loss, 0.01);
      EXPECT_NE(comparison->gpu_loss, comparison->cpu_loss);
    }
  }
}

// Goal: a wrong op is named, and in isolated mode nothing else is. Method: the
// first output of one instruction at a time is scaled by 1.05, for the first
// instruction of each kind that computes, in the second micro-batch.
TEST_F(CompareTest, NamesTheWrongOp) {
  std::set<OpKind> tried;
  for (size_t id = 0; id < program_.instructions.size(); ++id) {
    const Instruction& culprit = program_.instructions[id];
    if (culprit.microbatch_idx != 1 || culprit.kind == OpKind::kLoadBatch ||
        !tried.insert(culprit.kind).second) {
      continue;
    }
    const auto fault = [&](const Instruction& instruction,
                           std::vector<float>* values) {
      if (instruction.name != culprit.name ||
          instruction.microbatch_idx != culprit.microbatch_idx) {
        return;
      }
      for (float& value : *values) value *= 1.05f;
    };
    for (const CompareMode mode :
         {CompareMode::kIsolated, CompareMode::kChained}) {
      const Program& gpu =
          mode == CompareMode::kIsolated ? bf16_program_ : program_;
      const auto comparison = Compare(gpu, mode, fault);
      ASSERT_TRUE(comparison.ok()) << comparison.status();
      const auto first = comparison->FirstDifference();
      ASSERT_TRUE(first.has_value()) << culprit.name;
      EXPECT_EQ(first->instruction, static_cast<InstructionId>(id));
      EXPECT_THAT(ComparisonToText(*comparison), HasSubstr(culprit.name));
      if (mode == CompareMode::kChained) continue;
      for (const OutputComparison& output : comparison->outputs) {
        EXPECT_TRUE(output.within || output.instruction == first->instruction)
            << output.name << " while " << culprit.name << " is wrong";
      }
    }
  }
  EXPECT_GE(tried.size(), size_t{9});
}

// Goal: single wrong elements, values that are no numbers and infinities are
// differences. Method: one element of a GEMM's output.
TEST_F(CompareTest, SeesSingleElements) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(),
                          std::numeric_limits<float>::infinity(), 1e3f}) {
    const auto comparison = Compare(
        bf16_program_, CompareMode::kIsolated,
        [bad](const Instruction& instruction, std::vector<float>* values) {
          if (instruction.kind == OpKind::kGemm) values->back() = bad;
        });
    ASSERT_TRUE(comparison.ok()) << comparison.status();
    ASSERT_TRUE(comparison->FirstDifference().has_value());
    EXPECT_EQ(comparison->FirstDifference()->kind, OpKind::kGemm);
    const auto json = nlohmann::json::parse(ComparisonToJson(*comparison));
    EXPECT_EQ(json["first_difference"]["op"], "gemm");
    EXPECT_EQ(json["outputs"].size(), comparison->outputs.size());
  }
}

// Goal: Programs that do not correspond are refused. Method: one instruction
// less, one of another name; several ranks.
TEST_F(CompareTest, RefusesOtherPrograms) {
  Program shorter = program_;
  shorter.instructions.pop_back();
  EXPECT_THAT(Compare(shorter, CompareMode::kChained).status().message(),
              HasSubstr("one to one"));
  Program renamed = program_;
  renamed.instructions[3].name = "another";
  EXPECT_THAT(Compare(renamed, CompareMode::kChained).status().message(),
              HasSubstr("another on the GPU"));
  Program several = program_;
  several.layout.data = 2;
  EXPECT_EQ(CpuStepper::Create(
                {.program = &several, .job = job_, .batches = &batches_})
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
}

// Goal: bf16 rounds to nearest, ties to even. Method: values around 1 and 2^-8,
// the step there, and what has no neighbours.
TEST(StepperTest, RoundsToNearestEven) {
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> values = {1.0f,
                               1.0f + 0x1p-9f,      // Below a tie.
                               1.0f + 0x1p-8f,      // A tie: down to even.
                               1.0f + 3 * 0x1p-8f,  // A tie: up to even.
                               1.0f + 0x1p-8f + 0x1p-20f,  // Above a tie.
                               -infinity,
                               std::numeric_limits<float>::quiet_NaN()};
  RoundTo(DType::kBfloat16, &values);
  EXPECT_EQ(values[0], 1.0f);
  EXPECT_EQ(values[1], 1.0f);
  EXPECT_EQ(values[2], 1.0f);
  EXPECT_EQ(values[3], 1.0f + 0x1p-6f);
  EXPECT_EQ(values[4], 1.0f + 0x1p-7f);
  EXPECT_EQ(values[5], -infinity);
  EXPECT_TRUE(std::isnan(values[6]));
}

// Memory for a Program's buffers, by id, that rounds as their types do.
class RoundingMemory : public Stepper {
 public:
  explicit RoundingMemory(const Program* program) : program_(program) {}
  const Program& program() const override { return *program_; }
  absl::Status Run(InstructionId) override { return absl::OkStatus(); }
  absl::StatusOr<std::vector<float>> Read(BufferId id) override {
    return values_.at(id);
  }
  absl::Status Write(BufferId id, const std::vector<float>& values) override {
    const Buffer& buffer = program_->buffers[static_cast<size_t>(id)];
    EXPECT_EQ(static_cast<int64_t>(values.size()), NumElements(buffer));
    values_[id] = values;
    RoundTo(buffer.dtype, &values_[id]);
    return absl::OkStatus();
  }

 private:
  const Program* program_;
  std::map<BufferId, std::vector<float>> values_;
};

// Goal: parameters are written and read in their own order wherever a Program
// keeps them. Of a bf16 Program's, norms' alone stay as they were, and matrices
// that are read in 8 bits, of which it has the master weights alone. Method:
// each its own value, a bit beyond bf16.
TEST(StepperTest, RoundsAllParametersButNorms) {
  Layout layout = {.micro_batch = 2, .num_microbatches = 2};
  for (const auto& [precision, format] :
       {std::pair(Precision::kFloat32, GemmFormat::kAsStored),
        std::pair(Precision::kFloat32, GemmFormat::kFloat8),
        std::pair(Precision::kBfloat16, GemmFormat::kAsStored),
        std::pair(Precision::kBfloat16, GemmFormat::kFloat8)}) {
    layout.precision = precision;
    layout.gemm_format = format;
    const auto program = BuildTrainingProgram(SmallJob().model, layout, 0);
    ASSERT_TRUE(program.ok()) << program.status();
    const StageParameters& parameters = program->parameters;
    std::vector<float> written(static_cast<size_t>(parameters.num_elements));
    for (size_t i = 0; i < written.size(); ++i) {
      written[i] = 1.0f + 0x1p-20f * static_cast<float>(1 + i % 1000);
    }
    RoundingMemory memory(&*program);
    if (program->master_buffer >= 0) {
      const std::vector<float> master(written.size(), 2.0f);
      ASSERT_TRUE(memory.Write(program->master_buffer, master).ok());
    }
    ASSERT_TRUE(WriteParameters(written, memory).ok());
    const auto read = ReadParameters(memory);
    ASSERT_TRUE(read.ok()) << read.status();
    std::vector<float> expected = written;
    for (const Bucket& bucket : parameters.buckets) {
      if (precision == Precision::kFloat32 || bucket.name == "norms" ||
          bucket.in_float8()) {
        continue;
      }
      std::fill_n(expected.begin() + bucket.offset, bucket.num_elements, 1.0f);
    }
    EXPECT_EQ(*read, expected);
  }
}

}  // namespace
}  // namespace millrace
