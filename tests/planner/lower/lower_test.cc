#include "planner/lower/lower.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/lower/graph.h"
#include "planner/program/workspace.h"
#include "tests/planner/planner_testing.h"
#include "tests/sweep.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

// In both precisions.
std::vector<Layout> AllTestLayouts() {
  std::vector<Layout> layouts = TestLayouts();
  for (const Layout& layout : TestLayouts(Precision::kBfloat16)) {
    layouts.push_back(layout);
  }
  return Sampled(layouts, 7);
}

std::string BufferName(const Program& program, BufferId id) {
  return program.buffers[id].name;
}

// Goal: every layout lowers to Programs without races, on right lanes, with
// operands in their arenas; equal inputs give equal Programs. Method: sweep,
// and check each with CheckProgram, which shares no code with the lowering's
// waits.
TEST(BuildTrainingProgramTest, GivesSoundProgramsForEveryLayout) {
  for (const Layout& layout : AllTestLayouts()) {
    for (int32_t stage = 0; stage < layout.pipeline; ++stage) {
      SCOPED_TRACE(absl::StrCat(LayoutToString(layout), ", stage ", stage));
      absl::StatusOr<Program> program =
          BuildTrainingProgram(TestModel(), layout, stage);
      ASSERT_TRUE(program.ok()) << program.status();
      ASSERT_TRUE(CheckProgram(*program).ok()) << CheckProgram(*program);
      absl::StatusOr<Program> again =
          BuildTrainingProgram(TestModel(), layout, stage);
      EXPECT_EQ(ProgramHash(*program), ProgramHash(*again));
    }
  }
}

// The calls in which data replicas meet, in the order of their lanes.
std::vector<std::string> MeetingsOfReplicas(const Program& program) {
  std::vector<std::string> calls;
  for (const std::vector<InstructionId>& lane : program.lanes) {
    for (const InstructionId id : lane) {
      const Instruction& in = program.instructions[id];
      if (!IsCollective(in.kind)) continue;
      const auto& call = std::get<CollectiveAttributes>(in.attributes);
      if (call.group == Group::kTensor) continue;
      calls.push_back(absl::StrCat(OpKindName(in.kind), " ", in.name, " ",
                                   GroupName(call.group), " ",
                                   call.num_elements));
    }
  }
  return calls;
}

// Goal: replicas with fewer micro-batches run their own number, on the same
// persistent arena and in no more memory, and meet the others in the same
// calls, each once a step. Method: uneven layouts of every schedule, ZeRO
// stage, reduction and format of products that takes them.
TEST(BuildTrainingProgramTest, ShorterReplicasMeetTheOthersInOneOrder) {
  std::vector<Layout> layouts;
  for (const int32_t zero : {0, 1}) {
    for (const Precision precision :
         {Precision::kFloat32, Precision::kBfloat16}) {
      const Layout plain{
          .data = 3, .micro_batch = 2, .zero = zero, .precision = precision};
      layouts.push_back(plain);
      layouts.push_back(plain);
      layouts.back().gradient_reduction = GradientReduction::kBfloat16;
      layouts.push_back(plain);
      layouts.back().data = 6;
      layouts.back().data_groups = 2;
      layouts.back().gradient_reduction = GradientReduction::kBfloat16Across;
      Layout stages = plain;
      stages.pipeline = 2;
      stages.tensor = 2;
      layouts.push_back(stages);
      layouts.push_back(stages);
      layouts.back().schedule = Schedule::kZeroBubble;
      layouts.push_back(ListScheduled(stages));
    }
  }
  for (Layout& layout : layouts) {
    layout.ShareBatch(14);  // 3, 2, 2 micro-batches; or 2 and five times 1.
    SCOPED_TRACE(LayoutToString(layout));
    ASSERT_EQ(layout.extra_microbatches, 1);
    const auto programs = BuildProgramsOfRanks(TestModel(), layout);
    ASSERT_TRUE(programs.ok()) << programs.status();
    ASSERT_EQ(programs->size(), NumPrograms(layout));
    for (int32_t stage = 0; stage < layout.pipeline; ++stage) {
      const auto of = [&](int32_t data) -> const Program& {
        return (
            *programs)[ProgramIdx(layout, {.pipeline = stage, .data = data})];
      };
      for (int32_t data = 0; data < layout.data; ++data) {
        const Program& program = of(data);
        EXPECT_TRUE(CheckProgram(program).ok()) << CheckProgram(program);
        const auto alone = BuildTrainingProgram(
            TestModel(), layout, {.pipeline = stage, .data = data});
        ASSERT_TRUE(alone.ok()) << alone.status();
        EXPECT_EQ(ProgramHash(*alone), ProgramHash(program));
        std::set<int32_t> microbatches;
        for (const Instruction& in : program.instructions) {
          if (in.microbatch_idx >= 0) microbatches.insert(in.microbatch_idx);
        }
        EXPECT_EQ(static_cast<int32_t>(microbatches.size()),
                  layout.num_microbatches_of(data));
      }
      const Program& longest = of(0);
      const Program& shorter = of(layout.data - 1);
      EXPECT_NE(ProgramHash(longest), ProgramHash(shorter));
      EXPECT_EQ(shorter.persistent_arena_bytes, longest.persistent_arena_bytes);
      EXPECT_LE(shorter.step_arena_bytes, longest.step_arena_bytes);
      const std::vector<std::string> calls = MeetingsOfReplicas(longest);
      EXPECT_EQ(MeetingsOfReplicas(shorter), calls);
      EXPECT_EQ(std::set<std::string>(calls.begin(), calls.end()).size(),
                calls.size());
    }
  }
}

// The test model with dims that 8-bit products take on up to four tensor ranks.
ModelSpec Float8Model() {
  ModelSpec model = TestModel();
  model.hidden = 64;
  model.head_dim = 16;
  model.ffn_hidden = 192;
  model.sequence_length = 16;
  return model;
}

// Goal: the same with 8-bit products. Each layer's weights are made once a step
// of those that the optimizer updates, and have no other form; each matrix is
// transposed once a step, or once a pass where a pass gathers it (ZeRO 3).
// Validation transposes nothing. Method: sweep; count the ops, and the bytes of
// what is gathered.
TEST(BuildTrainingProgramTest, MultipliesIn8Bits) {
  int num_layouts = 0;
  for (Layout layout : Sampled(TestLayouts(Precision::kBfloat16), 3)) {
    layout.gemm_format = GemmFormat::kFloat8;
    const ModelSpec model = Float8Model();
    if (!ValidateLayout(model, layout, layout.global_batch()).ok()) continue;
    ++num_layouts;
    for (int32_t stage = 0; stage < layout.pipeline; ++stage) {
      SCOPED_TRACE(absl::StrCat(LayoutToString(layout), ", stage ", stage));
      const auto program = BuildTrainingProgram(model, layout, stage);
      ASSERT_TRUE(program.ok()) << program.status();
      ASSERT_TRUE(CheckProgram(*program).ok()) << CheckProgram(*program);
      const auto validation = BuildValidationProgram(model, layout, stage);
      ASSERT_TRUE(validation.ok()) << validation.status();
      ASSERT_TRUE(CheckProgram(*validation).ok()) << CheckProgram(*validation);
      const LayerRange layers = StageLayers(model, layout, stage);
      const int64_t num_layers = layers.end - layers.begin;
      std::map<OpKind, int64_t> counts;
      for (const Instruction& in : program->instructions) {
        EXPECT_NE(in.kind, OpKind::kGemm) << in.name;
        ++counts[in.kind];
        if (absl::StartsWith(in.name, "gather_parameters/layers.")) {
          EXPECT_EQ(std::get<CollectiveAttributes>(in.attributes).dtype,
                    DType::kFloat8E4m3);
        }
      }
      EXPECT_EQ(counts[OpKind::kWeightAmax], num_layers);
      EXPECT_EQ(counts[OpKind::kQuantizeWeights], num_layers);
      EXPECT_EQ(counts[OpKind::kTransposeFloat8],
                4 * num_layers *
                    (layout.shards_parameters() ? layout.num_microbatches : 1));
      // Over the tensor axis, tokens and gradients are gathered before they
      // are copied. Else one gradient a layer comes from another layer.
      int64_t num_searched = 0;
      for (const Instruction& in : program->instructions) {
        if (in.kind != OpKind::kQuantizeFloat8) continue;
        if (!std::get<QuantizeAttributes>(in.attributes).amax_given) {
          ++num_searched;
          continue;
        }
        // Its writer found it.
        const auto writer = std::find_if(
            program->instructions.begin(), program->instructions.end(),
            [&](const Instruction& other) {
              return !other.outputs.empty() &&
                     other.outputs.back() == in.inputs[1];
            });
        ASSERT_NE(writer, program->instructions.end()) << in.name;
        EXPECT_TRUE(FindsAmax(writer->attributes)) << in.name;
        EXPECT_EQ(writer->outputs[MainOutput(writer->kind)], in.inputs[0])
            << in.name;
      }
      if (layout.recompute == Recompute::kNone) {
        EXPECT_EQ(num_searched, (layout.tensor == 1 ? 1 : 4) *
                                    (layers.end - layers.begin) *
                                    layout.num_microbatches);
      }
      for (const Instruction& in : validation->instructions) {
        EXPECT_NE(in.kind, OpKind::kTransposeFloat8) << in.name;
        if (in.kind != OpKind::kQuantizeFloat8) continue;
        EXPECT_FALSE(
            std::get<QuantizeAttributes>(in.attributes).keeps_transposed);
      }
    }
  }
  EXPECT_GE(num_layouts, 20);
}

// Goal: the same with scales for blocks: nobody looks for the largest magnitude
// of a tensor, a weight's copies share their units, and validation lays out the
// persistent arena as training does. Method: sweep with dims that blocks
// divide; count the kinds.
TEST(BuildTrainingProgramTest, MultipliesInBlocksOf8Bits) {
  ModelSpec model = TestModel();
  model.hidden = 128;
  model.head_dim = 128;
  model.ffn_hidden = 768;
  model.sequence_length = 128;
  int num_layouts = 0;
  for (Layout layout : Sampled(TestLayouts(Precision::kBfloat16), 3)) {
    layout.gemm_format = GemmFormat::kFloat8Blocks;
    if (!ValidateLayout(model, layout, layout.global_batch()).ok()) continue;
    ++num_layouts;
    for (int32_t stage = 0; stage < layout.pipeline; ++stage) {
      SCOPED_TRACE(absl::StrCat(LayoutToString(layout), ", stage ", stage));
      const auto program = BuildTrainingProgram(model, layout, stage);
      ASSERT_TRUE(program.ok()) << program.status();
      ASSERT_TRUE(CheckProgram(*program).ok()) << CheckProgram(*program);
      const auto validation = BuildValidationProgram(model, layout, stage);
      ASSERT_TRUE(validation.ok()) << validation.status();
      ASSERT_TRUE(CheckProgram(*validation).ok()) << CheckProgram(*validation);
      EXPECT_EQ(validation->persistent_arena_bytes,
                program->persistent_arena_bytes);
      int64_t num_squares = 0, num_products = 0;
      for (const Instruction& in : program->instructions) {
        EXPECT_FALSE(FindsAmax(in.attributes)) << in.name;
        EXPECT_NE(in.kind, OpKind::kQuantizeFloat8) << in.name;
        EXPECT_NE(in.kind, OpKind::kFloat8Gemm) << in.name;
        EXPECT_NE(in.kind, OpKind::kGemm) << in.name;
        if (in.kind == OpKind::kQuantizeFloat8Squares) ++num_squares;
        if (in.kind == OpKind::kFloat8BlockGemm &&
            in.phase != Phase::kRecompute) {
          ++num_products;
        }
      }
      const LayerRange range = StageLayers(model, layout, stage);
      const int64_t layers = range.end - range.begin;
      // Four products of each layer, forward and for both gradients.
      EXPECT_EQ(num_products, 12 * layers * layout.num_microbatches);
      if (!layout.shards_parameters()) {
        EXPECT_EQ(num_squares, 4 * layers);
      }
      for (const Instruction& in : validation->instructions) {
        if (!MakesFloat8Copies(in.kind)) continue;
        EXPECT_FALSE(
            std::get<QuantizeAttributes>(in.attributes).keeps_transposed);
      }
    }
  }
  EXPECT_GE(num_layouts, 20);
}

// Goal: validation Programs are sound, change no parameter but for gathering
// them, and share the persistent arena with training. Method: sweep.
TEST(BuildValidationProgramTest, SharesThePersistentArena) {
  for (const Layout& layout : AllTestLayouts()) {
    if (layout.num_microbatches != 2) continue;
    for (int32_t stage = 0; stage < layout.pipeline; ++stage) {
      SCOPED_TRACE(absl::StrCat(LayoutToString(layout), ", stage ", stage));
      absl::StatusOr<Program> training =
          BuildTrainingProgram(TestModel(), layout, stage);
      absl::StatusOr<Program> validation =
          BuildValidationProgram(TestModel(), layout, stage);
      ASSERT_TRUE(training.ok() && validation.ok());
      EXPECT_TRUE(CheckProgram(*validation).ok()) << CheckProgram(*validation);
      EXPECT_EQ(validation->persistent_arena_bytes,
                training->persistent_arena_bytes);
      EXPECT_EQ(validation->exp_avg_buffer, -1);
      EXPECT_EQ(validation->exp_avg_sq_buffer, -1);
      std::map<std::string, int64_t> offsets;
      for (const Buffer& buffer : training->buffers) {
        if (buffer.arena == Arena::kPersistent) {
          offsets[buffer.name] = buffer.offset_bytes;
        }
      }
      for (const Buffer& buffer : validation->buffers) {
        if (buffer.arena != Arena::kPersistent) continue;
        ASSERT_TRUE(offsets.contains(buffer.name)) << buffer.name;
        EXPECT_EQ(buffer.offset_bytes, offsets[buffer.name]) << buffer.name;
      }
      for (const Instruction& instruction : validation->instructions) {
        if (instruction.phase == Phase::kParameterGather) continue;
        for (BufferId id : instruction.outputs) {
          EXPECT_FALSE(
              absl::StartsWith(BufferName(*validation, id), "parameters"));
        }
      }
    }
  }
}

// Goal: the first micro-batch overwrites each gradient, later ones add. Method:
// follow every gradient of every bucket through the step.
TEST(BuildTrainingProgramTest, FirstMicrobatchOverwritesGradients) {
  const Layout layout{.tensor = 2, .num_microbatches = 3};
  absl::StatusOr<Program> program =
      BuildTrainingProgram(TestModel(), layout, 0);
  ASSERT_TRUE(program.ok());
  std::map<std::string, int> writes;
  for (const Instruction& instruction : program->instructions) {
    if (instruction.microbatch_idx < 0) continue;
    for (BufferId id : instruction.outputs) {
      const std::string& name = BufferName(*program, id);
      if (!absl::StartsWith(name, "gradients/")) continue;
      const bool accumulate = std::visit(
          [](const auto& a) {
            if constexpr (requires { a.accumulate; }) return a.accumulate;
            return false;
          },
          instruction.attributes);
      EXPECT_EQ(accumulate, instruction.microbatch_idx > 0) << name;
      ++writes[name];
    }
  }
  // Four matrices and two norms a layer, embedding, head, final norm.
  EXPECT_EQ(writes.size(), 5u * 6 + 3);
  for (const auto& [name, count] : writes) EXPECT_EQ(count, 3) << name;
}

// Goal: with zero bubble a stage owes the weight gradients of as many
// micro-batches as there are stages before it, never more, and pays in order.
// Method: after each backward pass, which micro-batches have input gradients of
// the stage's first layer but no weight gradient of it yet.
TEST(BuildTrainingProgramTest, PutsOffWeightGradients) {
  ModelSpec model = TestModel();
  model.num_layers = 4;
  Layout layout{.pipeline = 4,
                .micro_batch = 1,
                .num_microbatches = 8,
                .schedule = Schedule::kZeroBubble};
  for (int32_t stage = 0; stage < layout.pipeline; ++stage) {
    SCOPED_TRACE(stage);
    const Program program = *BuildTrainingProgram(model, layout, stage);
    int32_t num_passes = 0, num_paid = 0, most_owed = 0;
    for (const Instruction& i : program.instructions) {
      if (i.name.ends_with("attention/backward/norm")) {
        EXPECT_EQ(i.microbatch_idx, num_passes);
        ++num_passes;
      } else if (i.name.ends_with("attention/backward/qkv_weight")) {
        EXPECT_EQ(i.microbatch_idx, num_paid);
        ++num_paid;
        most_owed = std::max(most_owed, num_passes - num_paid);
      }
    }
    EXPECT_EQ(num_passes, layout.num_microbatches);
    EXPECT_EQ(num_paid, layout.num_microbatches);
    EXPECT_EQ(most_owed, stage);
  }
}

// Goal: bf16 logits that fit one chunk are computed once: the gradient takes
// the workspace of the stats. Method: whatever layout has both, with a small
// and with a large vocabulary.
TEST(BuildTrainingProgramTest, KeepsLogitsOfOneChunk) {
  for (const Layout& layout : TestLayouts(Precision::kBfloat16)) {
    if (layout.tensor == 1) continue;
    for (const bool one_chunk : {true, false}) {
      SCOPED_TRACE(absl::StrCat(LayoutToString(layout), ", ", one_chunk));
      ModelSpec model = TestModel();
      if (!one_chunk) {
        model.vocab_size = int64_t{1} << 28;
        model.sequence_length = 1024;
      }
      const Program program =
          *BuildTrainingProgram(model, layout, layout.pipeline - 1);
      std::vector<BufferId> kept;
      for (const Instruction& i : program.instructions) {
        if (i.kind == OpKind::kCrossEntropyStats) {
          kept.push_back(i.outputs[1]);
        } else if (i.kind == OpKind::kCrossEntropyGradient) {
          EXPECT_EQ(std::get<VocabAttributes>(i.attributes).keeps_logits,
                    one_chunk);
          ASSERT_EQ(i.inputs.size(), one_chunk ? 5u : 4u);
          const bool is_kept = absl::c_linear_search(kept, i.outputs[3]) &&
                               absl::c_linear_search(i.inputs, i.outputs[3]);
          EXPECT_EQ(is_kept, one_chunk);
        }
      }
      EXPECT_FALSE(kept.empty());
    }
  }
}

// Goal: bf16 Programs hold what their kind needs: bf16 activations, parameters
// and messages, fp32 gradients, statistics, state and weights of norms, weights
// where GPU kernels can read them, and the compute lane's scratch. Method: look
// at the types and places of all buffers and messages.
TEST(BuildTrainingProgramTest, ComputesInBf16) {
  for (const Layout& layout : TestLayouts(Precision::kBfloat16)) {
    SCOPED_TRACE(LayoutToString(layout));
    const int32_t stage = layout.pipeline - 1;
    const Program program = *BuildTrainingProgram(TestModel(), layout, stage);
    const auto buffer = [&](BufferId id) { return program.buffers[id]; };
    const int64_t num_moments = program.parameters.num_optimizer_elements;
    EXPECT_EQ(buffer(program.parameters_buffer).dtype, DType::kBfloat16);
    EXPECT_EQ(buffer(program.gradients_buffer).dtype, DType::kFloat32);
    EXPECT_EQ(buffer(program.master_buffer).dtype, DType::kFloat32);
    EXPECT_THAT(buffer(program.master_buffer).dims,
                testing::ElementsAre(num_moments));
    EXPECT_EQ(buffer(program.scratch_buffer).bytes, kComputeScratchBytes);
    EXPECT_EQ(buffer(program.norms_buffer).dtype, DType::kFloat32);
    EXPECT_EQ(buffer(program.norms_buffer).dims[0] +
                  buffer(program.parameters_buffer).dims[0],
              layout.shards_parameters() ? num_moments
                                         : program.parameters.num_elements);
    const std::set<std::string> fp32 = {"rstd", "lse", "stats", "all_stats"};
    for (const Buffer& b : program.buffers) {
      EXPECT_EQ(b.offset_bytes % 256, 0) << b.name;
      if (b.arena == Arena::kPersistent || b.dtype == DType::kInt32) continue;
      const std::string last = b.name.substr(b.name.rfind('/') + 1);
      const bool is_fp32 = fp32.contains(last) ||
                           absl::StrContains(b.name, "/gradients/") ||
                           absl::EndsWith(b.name, "/whole_bucket/norms") ||
                           (absl::StrContains(b.name, "/parameters") &&
                            absl::EndsWith(last, "norm"));
      EXPECT_EQ(b.dtype, is_fp32 ? DType::kFloat32 : DType::kBfloat16)
          << b.name;
    }
    for (const Instruction& i : program.instructions) {
      if (const auto* a = std::get_if<CollectiveAttributes>(&i.attributes)) {
        const bool is_gradient = i.phase == Phase::kGradientReduce;
        const bool is_fp32 = is_gradient || i.name == "head/gather_stats" ||
                             i.name == "gather_parameters/norms";
        EXPECT_EQ(a->dtype, a->group == Group::kWorld ? DType::kFloat64
                            : is_fp32                 ? DType::kFloat32
                                                      : DType::kBfloat16)
            << i.name;
      }
      if (const auto* a = std::get_if<TransferAttributes>(&i.attributes)) {
        EXPECT_EQ(a->dtype, DType::kBfloat16) << i.name;
      }
      if (const auto* a = std::get_if<GemmAttributes>(&i.attributes)) {
        EXPECT_EQ(buffer(i.outputs[0]).dtype,
                  GemmOutputType(layout.precision, *a))
            << i.name;
      }
      if (i.kind == OpKind::kRmsNormForward ||
          i.kind == OpKind::kResidualRmsNormForward) {
        EXPECT_EQ(buffer(i.inputs.back()).dtype, DType::kFloat32) << i.name;
      }
      if (i.kind == OpKind::kRmsNormBackward) {
        EXPECT_EQ(buffer(i.inputs[3]).dtype, DType::kFloat32) << i.name;
      }
      if (i.kind == OpKind::kAdamW) {
        EXPECT_TRUE(absl::StartsWith(BufferName(program, i.inputs[6]),
                                     "master/bucket/"));
        EXPECT_EQ(i.outputs[3], i.inputs[6]);
      }
    }
  }
}

// Goal: publishing writes every bucket's parameters from the bf16 run's master
// weights, on the training Program's arena, and does nothing in fp32. Method:
// sweep; compare with the training Program.
TEST(BuildPublishProgramTest, CastsEveryBucket) {
  for (const Layout& layout : AllTestLayouts()) {
    SCOPED_TRACE(LayoutToString(layout));
    const Program publish = *BuildPublishProgram(TestModel(), layout, 0);
    const Program training = *BuildTrainingProgram(TestModel(), layout, 0);
    ASSERT_TRUE(CheckProgram(publish).ok()) << CheckProgram(publish);
    EXPECT_EQ(publish.persistent_arena_bytes, training.persistent_arena_bytes);
    EXPECT_EQ(publish.step_arena_bytes, 0);
    if (layout.precision == Precision::kFloat32) {
      EXPECT_TRUE(publish.instructions.empty());
      continue;
    }
    std::map<std::string, int64_t> offsets;
    for (const Buffer& b : training.buffers) {
      if (b.arena == Arena::kPersistent) offsets[b.name] = b.offset_bytes;
    }
    std::set<std::string> written;
    for (const Instruction& i : publish.instructions) {
      EXPECT_EQ(i.kind, OpKind::kCastParameters);
      EXPECT_EQ(std::get<OptimizerAttributes>(i.attributes).data_sharded,
                layout.shards_optimizer());
      for (const BufferId id : {i.inputs[0], i.outputs[0]}) {
        const std::string& name = BufferName(publish, id);
        ASSERT_TRUE(offsets.contains(name)) << name;
        EXPECT_EQ(publish.buffers[id].offset_bytes, offsets[name]) << name;
      }
      written.insert(BufferName(publish, i.outputs[0]));
    }
    EXPECT_EQ(written.size(), training.parameters.buckets.size());
  }
}

// Goal: 1F1B's bound on memory: the step arena of a deep pipeline does not grow
// with the number of micro-batches. Method: compare 8 with 16 micro-batches.
TEST(BuildTrainingProgramTest, MemoryStopsGrowingWithMicrobatches) {
  for (int32_t stage = 0; stage < 4; ++stage) {
    Layout layout{.pipeline = 4, .num_microbatches = 8};
    const int64_t eight =
        BuildTrainingProgram(TestModel(), layout, stage)->step_arena_bytes;
    layout.num_microbatches = 16;
    const int64_t sixteen =
        BuildTrainingProgram(TestModel(), layout, stage)->step_arena_bytes;
    EXPECT_LE(sixteen, eight * 1.1) << "stage " << stage;
  }
}

// Goal: shares make sums over the world right. Method: the loss shares of the
// ranks that add a loss sum to one a data replica; squared-norm shares sum to
// one for every element.
TEST(BuildTrainingProgramTest, SharesSumToOne) {
  for (const Layout& layout : TestLayouts()) {
    SCOPED_TRACE(LayoutToString(layout));
    const Program program =
        *BuildTrainingProgram(TestModel(), layout, layout.pipeline - 1);
    const bool sharded = layout.shards_optimizer();
    for (const Instruction& instruction : program.instructions) {
      if (instruction.kind == OpKind::kLinearCrossEntropy ||
          instruction.kind == OpKind::kCrossEntropyGradient) {
        const auto& a = std::get<VocabAttributes>(instruction.attributes);
        EXPECT_DOUBLE_EQ(a.loss_share * layout.tensor, 1.0);
        EXPECT_DOUBLE_EQ(
            a.token_scale * layout.global_batch() * TestModel().sequence_length,
            1.0);
      }
      if (instruction.kind == OpKind::kSquaredNorm) {
        const auto& a = std::get<OptimizerAttributes>(instruction.attributes);
        EXPECT_EQ(a.data_sharded, sharded);
        double copies = sharded ? layout.data_groups : layout.data;
        if (instruction.name == "squared_norm/norms") copies *= layout.tensor;
        EXPECT_DOUBLE_EQ(a.share * copies, 1.0) << instruction.name;
      }
    }
  }
}

// Goal: what cannot be lowered is refused. Method: a bad layout, a bad stage.
TEST(BuildTrainingProgramTest, RefusesWhatCannotBe) {
  EXPECT_THAT(std::string(BuildTrainingProgram(TestModel(), {.tensor = 3}, 0)
                              .status()
                              .message()),
              HasSubstr("tensor"));
  EXPECT_EQ(
      BuildTrainingProgram(TestModel(), {.pipeline = 2}, 2).status().code(),
      absl::StatusCode::kInvalidArgument);
}

// Goal: the logits workspace stays near its limit and within the tokens there
// are. Method: a small, a large and a huge vocabulary.
TEST(ChunkTokensTest, KeepsTheWorkspaceSmall) {
  const auto chunk = [](int64_t num_tokens, int64_t vocab_rows) {
    return ChunkTokens(Precision::kFloat32, num_tokens, vocab_rows);
  };
  EXPECT_EQ(chunk(100, 50), 100);
  EXPECT_EQ(chunk(4096, 8192), 128);
  EXPECT_EQ(chunk(4096, 200000), 64);
  EXPECT_EQ(chunk(10, 200000), 10);
}

// Goal: bf16 chunks are even, fit their bytes and are multiples of 256. Method:
// Llama-3's vocabulary at several token counts, and vocabularies beyond reason.
TEST(ChunkTokensTest, CutsBf16Evenly) {
  const auto chunk = [](int64_t num_tokens, int64_t vocab_rows) {
    return ChunkTokens(Precision::kBfloat16, num_tokens, vocab_rows);
  };
  EXPECT_EQ(chunk(100, 50), 100);
  EXPECT_EQ(chunk(4096, 128256), 4096);
  EXPECT_EQ(chunk(8192, 128256), 4096);
  EXPECT_EQ(chunk(32768, 128256), 4096);
  EXPECT_EQ(chunk(20000, 128256), 4096);
  EXPECT_EQ(chunk(4608, 128256), 2304);
  EXPECT_EQ(chunk(4096, int64_t{1} << 30), 256);
  for (int64_t num_tokens = 1; num_tokens < 30000; num_tokens += 997) {
    for (const int64_t vocab_rows : {1000, 32000, 128256, 500000}) {
      const int64_t tokens = chunk(num_tokens, vocab_rows);
      EXPECT_LE(tokens * Bf16LogitsRowBytes(vocab_rows), kBf16LogitsBytes);
      EXPECT_TRUE(tokens == num_tokens || tokens % 256 == 0) << tokens;
    }
  }
}

}  // namespace
}  // namespace millrace
