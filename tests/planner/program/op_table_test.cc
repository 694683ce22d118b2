#include "planner/program/op_table.h"

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/lower/lower.h"
#include "planner/program/op_work.h"
#include "tests/planner/op_samples.h"
#include "tests/planner/planner_testing.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

std::vector<OperandSpec> OperandsOf(OpKind kind) {
  const OpDescriptor& op = Describe(kind);
  std::vector<OperandSpec> operands(op.inputs.begin(), op.inputs.end());
  operands.insert(operands.end(), op.outputs.begin(), op.outputs.end());
  return operands;
}

// Goal: no row contradicts itself. Method: every kind; each operand has a name
// and elements in both precisions, optional inputs come last, no output is
// optional, and an output in place of an input has its size and type unless
// that is a choice.
TEST(OpTableTest, RowsAreConsistent) {
  for (const OpKind kind : AllOpKinds()) {
    SCOPED_TRACE(OpKindName(kind));
    const OpDescriptor& op = Describe(kind);
    EXPECT_EQ(op.kind, kind);
    EXPECT_GT(op.inputs.size() + op.outputs.size(), 0u);
    const OpAttributes attributes = SampleAttributes(kind, 1);
    for (const Precision precision :
         {Precision::kFloat32, Precision::kBfloat16}) {
      const Layout layout{.data = 2, .tensor = 2, .precision = precision};
      for (const OperandSpec& operand : OperandsOf(kind)) {
        EXPECT_STRNE(operand.name, "");
        const auto dims = OperandDims(operand, layout, attributes);
        EXPECT_FALSE(dims.empty()) << operand.name;
        for (const int64_t dim : dims) EXPECT_GT(dim, 0) << operand.name;
      }
      for (const OperandSpec& output : op.outputs) {
        EXPECT_NE(output.presence, Presence::kOptional) << output.name;
        if (output.input == kNoInput || output.in_place_is_a_choice) continue;
        ASSERT_LT(static_cast<size_t>(output.input), op.inputs.size());
        const OperandSpec& input = op.inputs[output.input];
        EXPECT_EQ(OperandDims(output, layout, attributes),
                  OperandDims(input, layout, attributes));
        EXPECT_EQ(OperandType(output, layout, attributes),
                  OperandType(input, layout, attributes));
      }
    }
    bool is_optional = false;
    for (const OperandSpec& input : op.inputs) {
      EXPECT_FALSE(is_optional && input.presence != Presence::kOptional)
          << input.name;
      is_optional = input.presence == Presence::kOptional;
    }
    EXPECT_GT(WorkOf({.tensor = 2}, kind, attributes).bytes, 0);
  }
}

// Goal: the work that prices rest on stays what it was when profiles were
// measured. Method: FLOPs, bytes in fp32 and bytes in bf16 of one op of each
// kind, counted by hand.
TEST(OpTableTest, WorkIsWhatProfilesWereMeasuredWith) {
  struct Row {
    const char* name;
    double flops, float_bytes, bfloat_bytes;
  };
  const std::vector<Row> rows = {
      {"load_batch", 0, 393216, 393216},
      {"embedding_forward", 0, 2097152, 1048576},
      {"embedding_backward", 262144, 3145728, 2621440},
      {"position_forward", 262144, 2129920, 1064960},
      {"position_backward", 262144, 1081344, 557056},
      {"rms_norm_forward", 1048576, 2097152, 1048576},
      {"residual_rms_norm_forward", 1310720, 4194304, 2097152},
      {"rms_norm_backward", 2621440, 4194304, 2097152},
      {"layer_norm_forward", 1835008, 2097152, 1048576},
      {"residual_layer_norm_forward", 2097152, 4194304, 2097152},
      {"layer_norm_backward", 3670016, 4194304, 2097152},
      {"add", 32768, 393216, 196608},
      {"gemm", 16777216, 1581056, 790528},
      {"quantize_float8", 0, 2621440, 1572864},
      {"float8_gemm", 16777216, 1181696, 657408},
      {"transpose_float8", 0, 65536, 65536},
      {"quantize_float8_blocks", 0, 1597440, 1073152},
      {"quantize_float8_squares", 0, 1572864, 1048576},
      {"float8_block_gemm", 16777216, 1198084, 673796},
      {"bias_gradient", 32768, 131072, 65536},
      {"rope", 18432, 49152, 24576},
      {"qk_norm_rope_forward", 43008, 73728, 36864},
      {"qk_norm_rope_backward", 79872, 73728, 36864},
      {"quantize_attention", 0, 45056, 28672},
      {"float8_attention_forward", 524288, 28672, 20480},
      {"attention_forward", 524288, 49152, 24576},
      {"attention_backward", 1310720, 98304, 49152},
      {"swiglu_forward", 163840, 393216, 196608},
      {"swiglu_backward", 327680, 655360, 327680},
      {"geglu_forward", 360448, 393216, 196608},
      {"geglu_backward", 655360, 655360, 327680},
      {"gelu_forward", 327680, 262144, 131072},
      {"gelu_backward", 589824, 393216, 196608},
      {"linear_cross_entropy", 201326592, 2162688, 1097728},
      {"cross_entropy_stats", 67108864, 1081344, 540672},
      {"cross_entropy_gradient", 201326592, 2162688, 1097728},
      {"cross_entropy_loss", 16384, 114688, 114688},
      {"preference_loss", 32768, 196608, 196608},
      {"all_gather", 0, 1048576, 1048576},
      {"reduce_scatter", 0, 1048576, 1048576},
      {"all_reduce", 0, 1048576, 1048576},
      {"send", 0, 1048576, 1048576},
      {"receive", 0, 1048576, 1048576},
      {"zero", 0, 131072, 131072},
      {"accumulate_gradients", 2048, 24576, 24576},
      {"round_gradients", 0, 12288, 12288},
      {"widen_gradients", 0, 12288, 12288},
      {"squared_norm", 4096, 8192, 8192},
      {"clip_factor", 4, 40, 40},
      {"adamw", 24576, 57344, 61440},
      {"cast_parameters", 0, 12288, 12288},
      {"weight_amax", 0, 8192, 8192},
      {"quantize_weights", 0, 10240, 10240},
  };
  const Layout in_floats{.data = 2, .tensor = 2};
  Layout in_bfloats = in_floats;
  in_bfloats.precision = Precision::kBfloat16;
  for (const OpKind kind : AllOpKinds()) {
    const auto row =
        std::find_if(rows.begin(), rows.end(), [&](const Row& row) {
          return row.name == std::string(OpKindName(kind));
        });
    ASSERT_NE(row, rows.end()) << OpKindName(kind);
    const OpAttributes attributes = SampleAttributes(kind, 1);
    EXPECT_EQ(WorkOf(in_floats, kind, attributes).flops, row->flops)
        << row->name;
    EXPECT_EQ(WorkOf(in_floats, kind, attributes).bytes, row->float_bytes)
        << row->name;
    EXPECT_EQ(WorkOf(in_bfloats, kind, attributes).bytes, row->bfloat_bytes)
        << row->name;
  }
}

// Goal: adding to a product costs one more read, and a head that kept its
// logits one product less. Method: with and without.
TEST(OpTableTest, WorkFollowsAttributes) {
  GemmAttributes gemm{.m = 10, .n = 20, .k = 30, .trans_a = true};
  EXPECT_EQ(WorkOf({}, OpKind::kGemm, gemm).bytes, 4 * (300 + 600 + 200));
  gemm.accumulate = true;
  EXPECT_EQ(WorkOf({}, OpKind::kGemm, gemm).bytes, 4 * (300 + 600 + 2 * 200));
  const OpKind head = OpKind::kCrossEntropyGradient;
  VocabAttributes vocab{.num_tokens = 10, .hidden = 20, .vocab_rows = 30};
  EXPECT_EQ(WorkOf({}, head, vocab).flops, 3 * 2 * 6000);
  vocab.keeps_logits = true;
  EXPECT_EQ(WorkOf({}, head, vocab).flops, 2 * 2 * 6000);
}

// Goal: an update that leaves parameters to others, since they are in 8 bits,
// writes less in bf16, and in fp32 the parameters themselves. Method: with and
// without.
TEST(OpTableTest, UpdatesInFloat8WriteMasterWeightsAlone) {
  OptimizerAttributes bucket{.num_elements = 4096, .data_sharded = true};
  OptimizerAttributes in_float8 = bucket;
  in_float8.in_float8 = true;
  for (const auto& [precision, less] : {std::pair(Precision::kFloat32, 0),
                                        std::pair(Precision::kBfloat16, 2)}) {
    const Layout layout{.data = 2, .zero = 1, .precision = precision};
    EXPECT_EQ(WorkOf(layout, OpKind::kAdamW, bucket).bytes -
                  WorkOf(layout, OpKind::kAdamW, in_float8).bytes,
              2048 * less);
  }
}

// Goal: lowering emits every kind, and each as the table has it. Method: a
// Llama, and models with the options that need other kinds; a few layouts with
// all axes, ZeRO stages and recomputation between them, in both
// precisions, with validation and publishing; CheckProgram reads the table.
// (lower_test sweeps all layouts.)
TEST(OpTableTest, EveryKindIsLoweredAsItsRowSays) {
  std::vector<Layout> layouts;
  for (const Precision precision :
       {Precision::kFloat32, Precision::kBfloat16}) {
    for (Layout layout :
         {Layout{}, Layout{.pipeline = 2, .data = 2, .tensor = 2, .zero = 1},
          Layout{.data = 2, .zero = 2}, Layout{.data = 2, .zero = 3},
          Layout{.data = 4, .data_groups = 2, .zero = 1},
          Layout{.tensor = 2, .recompute = Recompute::kFull}}) {
      layout.num_microbatches = 2;
      layout.precision = precision;
      layouts.push_back(layout);
      layout.gradient_reduction = GradientReduction::kBfloat16;
      layouts.push_back(layout);
      layout.gradient_reduction = GradientReduction::kBfloat16Across;
      layouts.push_back(layout);
      layout.moments = MomentFormat::kBfloat16;
      layouts.push_back(layout);
      layout.moments = MomentFormat::kBlocks8;
      layouts.push_back(layout);
      layout.objective = Objective::kPreference;
      layouts.push_back(layout);
    }
  }
  ModelSpec with_options = TestModel();
  with_options.qkv_bias = true;
  with_options.qk_norm = true;
  with_options.ties_embedding = true;
  ModelSpec gpt2 = TestModel();
  gpt2.learned_positions = 2 * gpt2.sequence_length;
  gpt2.norm = NormKind::kLayer;
  gpt2.feed_forward = FeedForward::kGelu;
  gpt2.qkv_bias = gpt2.linear_bias = true;
  ModelSpec gemma = TestModel();
  gemma.feed_forward = FeedForward::kGeglu;
  gemma.norm_adds_one = gemma.output_norms = gemma.scales_embedding = true;
  gemma.sliding_window = gemma.sequence_length / 2;
  gemma.global_layer_period = 2;
  // Its dims are multiples of 16, as 8-bit products take them.
  ModelSpec even = TestModel();
  even.hidden = 64;
  even.head_dim = 16;
  even.ffn_hidden = 64;
  even.sequence_length = 32;
  ModelSpec in_blocks = even;
  in_blocks.hidden = 128;
  in_blocks.head_dim = 128;
  in_blocks.ffn_hidden = 256;
  in_blocks.sequence_length = 128;
  in_blocks.attention_format = AttentionFormat::kFloat8;
  const size_t num_layouts = layouts.size();
  for (size_t i = 0; i < num_layouts; ++i) {
    for (const GemmFormat format :
         {GemmFormat::kFloat8, GemmFormat::kFloat8Blocks}) {
      layouts.push_back(layouts[i]);
      layouts.back().gemm_format = format;
    }
  }
  std::set<OpKind> seen;
  for (const ModelSpec& model :
       {TestModel(), with_options, gpt2, gemma, even, in_blocks}) {
    for (const Layout& layout : layouts) {
      if (IsFloat8(layout.gemm_format) &&
          !ValidateLayout(model, layout, layout.global_batch()).ok()) {
        continue;
      }
      SCOPED_TRACE(LayoutToString(layout));
      for (int32_t stage = 0; stage < layout.pipeline; ++stage) {
        for (const auto& program :
             {BuildTrainingProgram(model, layout, stage),
              BuildValidationProgram(model, layout, stage),
              BuildPublishProgram(model, layout, stage)}) {
          ASSERT_TRUE(program.ok()) << program.status();
          ASSERT_TRUE(CheckProgram(*program).ok()) << CheckProgram(*program);
          for (const Instruction& instruction : program->instructions) {
            seen.insert(instruction.kind);
          }
        }
      }
    }
  }
  for (const OpKind kind : AllOpKinds()) {
    EXPECT_TRUE(seen.contains(kind)) << OpKindName(kind);
  }
}

// Goal: an instruction that is not what the table says is refused, with the
// reason. Method: one mistake at a time in a Program that is right.
TEST(OpTableTest, CheckProgramNamesWhatDiffersFromTheTable) {
  const Program program = *BuildTrainingProgram(
      TestModel(), {.data = 2, .micro_batch = 2, .zero = 1}, 0);
  ASSERT_TRUE(CheckProgram(program).ok()) << CheckProgram(program);
  const auto error_of =
      [&](OpKind kind,
          const std::function<void(Program&, Instruction&)>& change) {
        Program changed = program;
        Instruction& first = *std::find_if(
            changed.instructions.begin(), changed.instructions.end(),
            [&](const Instruction& in) { return in.kind == kind; });
        change(changed, first);
        return std::string(CheckProgram(changed).message());
      };
  EXPECT_THAT(error_of(OpKind::kGemm,
                       [](Program&, Instruction& in) { in.inputs.pop_back(); }),
              HasSubstr("gemm has 1 inputs instead of 2"));
  EXPECT_THAT(error_of(OpKind::kRmsNormForward,
                       [](Program&, Instruction& in) {
                         in.outputs.push_back(in.outputs[0]);
                       }),
              HasSubstr("rms_norm_forward has 3 outputs instead of 2"));
  EXPECT_THAT(error_of(OpKind::kGemm,
                       [](Program&, Instruction& in) {
                         ++std::get<GemmAttributes>(in.attributes).n;
                       }),
              HasSubstr("input 1 of gemm, b, is parameters/"));
  EXPECT_THAT(error_of(OpKind::kSwigluForward,
                       [](Program& changed, Instruction& in) {
                         changed.buffers[in.outputs[0]].dtype = DType::kInt32;
                       }),
              HasSubstr("output 0 of swiglu_forward, activation, is mb0/"));
  EXPECT_THAT(
      error_of(OpKind::kRope,
               [](Program&, Instruction& in) { in.phase = Phase::kOptimizer; }),
      HasSubstr("rope is no op of the phase optimizer"));
  EXPECT_THAT(
      error_of(OpKind::kSwigluForward,
               [](Program&, Instruction& in) { in.phase = Phase::kRecompute; }),
      HasSubstr("is recomputed, but the stage recomputes none"));
  EXPECT_THAT(error_of(OpKind::kAdamW,
                       [](Program&, Instruction& in) {
                         std::swap(in.outputs[1], in.outputs[2]);
                       }),
              HasSubstr("adamw writes exp_avg to exp_avg_sq/"));
  EXPECT_THAT(error_of(OpKind::kSwigluForward,
                       [](Program&, Instruction& in) {
                         in.attributes = NoAttributes{};
                       }),
              HasSubstr("has the attributes of another op kind"));
}

}  // namespace
}  // namespace millrace
