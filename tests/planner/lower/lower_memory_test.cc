// Tests the effect of sharding and recomputing on Programs: where gradients and
// parameters are kept, how long whole buckets live, and what is recomputed.

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "planner/lower/lower.h"
#include "planner/program/happens_before.h"
#include "tests/planner/planner_testing.h"

namespace millrace {
namespace {

// Deep and narrow: parameters, not activations, fill its step.
ModelSpec DeepModel() {
  ModelSpec model = TestModel();
  model.hidden = 128;
  model.ffn_hidden = 512;
  model.num_layers = 12;
  model.vocab_size = 256;
  model.sequence_length = 16;
  return model;
}

Layout Sharded(int32_t zero, int32_t num_microbatches) {
  return {.data = 4, .num_microbatches = num_microbatches, .zero = zero};
}

int64_t NumElements(const Program& program, BufferId id) {
  return program.buffers[id].dims[0];
}

std::map<OpKind, int> CountKinds(const Program& program, Phase phase) {
  std::map<OpKind, int> counts;
  for (const Instruction& instruction : program.instructions) {
    if (instruction.phase == phase) ++counts[instruction.kind];
  }
  return counts;
}

// Goal: each ZeRO stage keeps what it says: moments, gradients, parameters in
// slices. Method: sizes of the flat buffers.
TEST(ShardedProgramTest, KeepsSlicesByStage) {
  for (const int32_t zero : {0, 1, 2, 3}) {
    const Program program =
        *BuildTrainingProgram(DeepModel(), Sharded(zero, 2), 0);
    const int64_t all = program.parameters.num_elements;
    EXPECT_EQ(NumElements(program, program.exp_avg_buffer),
              zero >= 1 ? all / 4 : all);
    EXPECT_EQ(NumElements(program, program.gradients_buffer),
              zero >= 2 ? all / 4 : all);
    EXPECT_EQ(NumElements(program, program.parameters_buffer),
              zero >= 3 ? all / 4 : all);
  }
}

// Goal: weights in 8 bits have no bf16 copy: rows and transposed take the two
// bytes of bf16, and slices one. Method: bytes of the flat buffers, of which
// all of them belong to the training Program and to those that share its arena.
TEST(ShardedProgramTest, KeepsWeightsIn8BitsAlone) {
  for (const int32_t zero : {0, 1, 2, 3}) {
    SCOPED_TRACE(zero);
    Layout layout = Sharded(zero, 2);
    layout.precision = Precision::kBfloat16;
    layout.gemm_format = GemmFormat::kFloat8;
    const Program program = *BuildTrainingProgram(DeepModel(), layout, 0);
    const int64_t ranks = zero == 3 ? 4 : 1;
    int64_t stored = 0, in_8_bits = 0;
    for (const Bucket& bucket : program.parameters.buckets) {
      if (bucket.name == "norms") continue;
      (bucket.in_float8() ? in_8_bits : stored) += bucket.num_elements / ranks;
    }
    EXPECT_EQ(NumElements(program, program.parameters_buffer), stored);
    EXPECT_EQ(NumElements(program, program.float8_weights_buffer),
              zero == 3 ? in_8_bits : 2 * in_8_bits);
    EXPECT_EQ(NumElements(program, program.master_buffer),
              program.parameters.num_elements / (zero >= 1 ? 4 : 1));
    for (const auto& other : {BuildValidationProgram(DeepModel(), layout, 0),
                              BuildPublishProgram(DeepModel(), layout, 0)}) {
      ASSERT_TRUE(other.ok()) << other.status();
      EXPECT_EQ(other->persistent_arena_bytes, program.persistent_arena_bytes);
      EXPECT_EQ(other->buffers[other->master_buffer].offset_bytes,
                program.buffers[program.master_buffer].offset_bytes);
    }
  }
}

// Goal: whole buckets come and go: a step of twelve layers holds a few of
// gradients and of parameters at once, however many micro-batches it has.
// Method: step arenas against that of ZeRO-1, which has none.
TEST(ShardedProgramTest, HoldsFewWholeBuckets) {
  for (const int32_t num_microbatches : {1, 2, 8}) {
    const auto program = [&](int32_t zero) {
      return *BuildTrainingProgram(DeepModel(), Sharded(zero, num_microbatches),
                                   0);
    };
    const Program plain = program(1);
    int64_t layer = 0, norms = 0;
    for (const Bucket& bucket : plain.parameters.buckets) {
      const int64_t bytes = bucket.num_elements * DTypeBytes(DType::kFloat32);
      int64_t& largest = bucket.tensor_replicated ? norms : layer;
      largest = std::max(largest, bytes);
    }
    // Gradients: being computed, being reduced, and reduced to a quarter;
    // norms of this and the last micro-batch.
    const int64_t gradients = 2 * layer + layer / 2 + 3 * norms;
    // Parameters: in use and gathered ahead.
    const int64_t parameters = 2 * layer + 4 * norms;
    EXPECT_LE(program(2).step_arena_bytes, plain.step_arena_bytes + gradients);
    EXPECT_LE(program(3).step_arena_bytes,
              plain.step_arena_bytes + gradients + parameters);
  }
}

// Goal: under ZeRO-2 gradients are reduced after each micro-batch, the first
// straight to where they stay, later ones added there; no weight gradient adds
// to what an earlier micro-batch left. Method: count and look.
TEST(ShardedProgramTest, ReducesAfterEachMicrobatch) {
  const Program program = *BuildTrainingProgram(DeepModel(), Sharded(2, 3), 0);
  const int num_buckets = static_cast<int>(program.parameters.buckets.size());
  std::map<OpKind, int> counts = CountKinds(program, Phase::kGradientReduce);
  EXPECT_EQ(counts[OpKind::kReduceScatter], 3 * num_buckets);
  EXPECT_EQ(counts[OpKind::kAccumulateGradients], 2 * num_buckets);
  for (const Instruction& instruction : program.instructions) {
    if (instruction.kind == OpKind::kReduceScatter) {
      EXPECT_EQ(
          program.buffers[instruction.outputs[0]].arena,
          instruction.microbatch_idx == 0 ? Arena::kPersistent : Arena::kStep);
    }
    if (const auto* gemm =
            std::get_if<GemmAttributes>(&instruction.attributes)) {
      EXPECT_FALSE(gemm->accumulate) << instruction.name;
    }
  }
}

// Goal: reductions run under the computation that follows: nothing on the
// compute lane waits for the latest one before the next bucket is complete.
// Method: from each reduction to the first compute instruction that waits for
// it, other reductions must have started, but for the last of the step.
TEST(ShardedProgramTest, HidesReductions) {
  const Program program = *BuildTrainingProgram(DeepModel(), Sharded(2, 4), 0);
  std::vector<InstructionId> reductions;
  for (const InstructionId id :
       program.lanes[static_cast<int>(Lane::kDataComm)]) {
    if (program.instructions[id].phase == Phase::kGradientReduce) {
      reductions.push_back(id);
    }
  }
  for (size_t i = 0; i + 1 < reductions.size(); ++i) {
    for (const InstructionId id :
         program.lanes[static_cast<int>(Lane::kCompute)]) {
      const auto& waits = program.instructions[id].waits;
      if (std::find(waits.begin(), waits.end(), reductions[i]) == waits.end()) {
        continue;
      }
      EXPECT_GT(id, reductions[i + 1])
          << program.instructions[id].name << " waits for "
          << program.instructions[reductions[i]].name;
    }
  }
}

// Goal: gradients of matrices reduced in bf16 are rounded as soon as the bucket
// is complete, sent in bf16, and widened where they stay: not before they are
// reduced, and not while the computation would wait for it. Norms stay in fp32.
// Method: count, and follow each bucket through the Program.
TEST(ShardedProgramTest, ReducesInBf16WhereAsked) {
  for (const int32_t zero : {0, 1, 2, 3}) {
    SCOPED_TRACE(zero);
    Layout layout = Sharded(zero, 3);
    layout.precision = Precision::kBfloat16;
    layout.gradient_reduction = GradientReduction::kBfloat16;
    const Program program = *BuildTrainingProgram(DeepModel(), layout, 0);
    const int num_buckets = static_cast<int>(program.parameters.buckets.size());
    const int rounds = zero >= 2 ? 3 : 1;  // A step.
    std::map<OpKind, int> counts = CountKinds(program, Phase::kGradientReduce);
    EXPECT_EQ(counts[OpKind::kRoundGradients], rounds * (num_buckets - 1));
    EXPECT_EQ(counts[OpKind::kWidenGradients], rounds * (num_buckets - 1));
    EXPECT_EQ(counts[zero == 0 ? OpKind::kAllReduce : OpKind::kReduceScatter],
              rounds * num_buckets);
    EXPECT_EQ(counts[OpKind::kAccumulateGradients],
              zero >= 2 ? 2 * num_buckets : 0);
    const HappensBefore order(program.instructions);
    std::map<BufferId, InstructionId> reductions;  // By what they write.
    std::vector<InstructionId> sent;
    for (size_t i = 0; i < program.instructions.size(); ++i) {
      const Instruction& in = program.instructions[i];
      const auto id = static_cast<InstructionId>(i);
      if (absl::StartsWith(in.name, "reduce_gradients/")) {
        EXPECT_EQ(std::get<CollectiveAttributes>(in.attributes).dtype,
                  absl::EndsWith(in.name, "/norms") ? DType::kFloat32
                                                    : DType::kBfloat16);
        reductions[in.outputs[0]] = id;
        sent.push_back(id);
      }
      if (in.kind != OpKind::kWidenGradients) continue;
      const InstructionId reduction = reductions.at(in.inputs[0]);
      EXPECT_TRUE(order.FinishedBefore(reduction, id));
      EXPECT_EQ(program.buffers[in.outputs[0]].dtype, DType::kFloat32);
      const bool is_last =
          static_cast<int>(sent.size()) == rounds * num_buckets;
      if (!is_last) {
        EXPECT_LT(reduction, sent.back()) << in.name;
      }
    }
  }
}

// Goal: rounded copies come and go: a step holds a few, and under ZeRO-2 and 3
// the bf16 copy takes the place of the fp32 gradients on their way. Method:
// step arenas with and without.
TEST(ShardedProgramTest, HoldsFewRoundedBuckets) {
  for (const int32_t num_microbatches : {1, 2, 8}) {
    for (const int32_t zero : {0, 1, 2, 3}) {
      Layout layout = Sharded(zero, num_microbatches);
      const Program plain = *BuildTrainingProgram(DeepModel(), layout, 0);
      layout.gradient_reduction = GradientReduction::kBfloat16;
      const Program rounded = *BuildTrainingProgram(DeepModel(), layout, 0);
      int64_t largest = 0;
      for (const Bucket& bucket : plain.parameters.buckets) {
        largest = std::max(largest,
                           bucket.num_elements * DTypeBytes(DType::kBfloat16));
      }
      EXPECT_EQ(rounded.persistent_arena_bytes, plain.persistent_arena_bytes);
      // One on its way, one being made; and reduced to a quarter.
      EXPECT_LE(rounded.step_arena_bytes,
                plain.step_arena_bytes + 2 * largest + largest / 2)
          << zero << ", " << num_microbatches;
    }
  }
}

// Goal: where groups alone send each other bf16, a step holds few rounded
// slices, and nothing else more than without. Method: step arenas with and
// without, for every ZeRO stage.
TEST(ShardedProgramTest, HoldsFewRoundedSlices) {
  for (const int32_t num_microbatches : {1, 2, 8}) {
    for (const int32_t zero : {0, 1, 2, 3}) {
      Layout layout = Sharded(zero, num_microbatches);
      layout.data_groups = 2;
      const Program plain = *BuildTrainingProgram(DeepModel(), layout, 0);
      layout.gradient_reduction = GradientReduction::kBfloat16Across;
      const Program rounded = *BuildTrainingProgram(DeepModel(), layout, 0);
      ASSERT_TRUE(CheckProgram(rounded).ok()) << CheckProgram(rounded);
      int64_t slice = 0;
      for (const Bucket& bucket : plain.parameters.buckets) {
        slice = std::max(slice, bucket.num_elements / layout.group_data() *
                                    DTypeBytes(DType::kBfloat16));
      }
      EXPECT_EQ(rounded.persistent_arena_bytes, plain.persistent_arena_bytes);
      EXPECT_LE(rounded.step_arena_bytes, plain.step_arena_bytes + 3 * slice)
          << zero << ", " << num_microbatches;
    }
  }
}

// Goal: under ZeRO-3 parameters are gathered one bucket ahead of use, no more
// than two at once, in both passes of every micro-batch. Method: find the last
// use of each gathered bucket; it must have finished before the gather after
// the next starts, and the next must not have to wait for it.
TEST(ShardedProgramTest, GathersOneBucketAhead) {
  const Program program = *BuildTrainingProgram(DeepModel(), Sharded(3, 2), 0);
  const HappensBefore order(program.instructions);
  std::vector<InstructionId> gathers;
  std::map<BufferId, InstructionId> last_use;
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& instruction = program.instructions[i];
    const auto id = static_cast<InstructionId>(i);
    if (instruction.phase == Phase::kParameterGather &&
        !absl::EndsWith(instruction.name, "/norms")) {
      gathers.push_back(id);
    }
    for (const BufferId input : instruction.inputs) {
      const BufferId parent = program.buffers[input].parent;
      if (parent >= 0) last_use[parent] = id;
    }
  }
  // Embedding and layers forward; head and layers backward.
  ASSERT_EQ(gathers.size(), 2u * (13 + 13));
  int num_ahead = 0;
  for (size_t i = 2; i < gathers.size(); ++i) {
    const auto last_use_of = [&](InstructionId gather) {
      return last_use.at(program.instructions[gather].outputs[0]);
    };
    EXPECT_TRUE(order.FinishedBefore(last_use_of(gathers[i - 2]), gathers[i]))
        << program.instructions[gathers[i]].name;
    num_ahead += !order.FinishedBefore(last_use_of(gathers[i - 1]), gathers[i]);
  }
  EXPECT_EQ(num_ahead, static_cast<int>(gathers.size()) - 2);
  // The second micro-batch's first gather comes before the reductions that end
  // the first one's backward pass.
  EXPECT_EQ(program.instructions[gathers[26]].name,
            "gather_parameters/embedding");
  const auto reduced =
      std::find_if(program.instructions.begin(), program.instructions.end(),
                   [](const Instruction& instruction) {
                     return instruction.name == "reduce_gradients/embedding";
                   });
  EXPECT_LT(gathers[26], reduced - program.instructions.begin());
}

// Goal: what is recomputed is what each setting says, once a layer and
// micro-batch, and the forward pass stays as it is. Method: count op kinds.
TEST(LowerRecomputeTest, ComputesAgainWhatItSays) {
  Layout layout{.num_microbatches = 2};
  const Program none = *BuildTrainingProgram(DeepModel(), layout, 0);
  const std::map<OpKind, int> forward = CountKinds(none, Phase::kForward);
  EXPECT_TRUE(CountKinds(none, Phase::kRecompute).empty());
  const int num_layers = 12 * 2;  // Micro-batches.

  layout.recompute = Recompute::kCheap;
  const Program selective = *BuildTrainingProgram(DeepModel(), layout, 0);
  EXPECT_EQ(CountKinds(selective, Phase::kForward), forward);
  EXPECT_EQ(CountKinds(selective, Phase::kRecompute),
            (std::map<OpKind, int>{{OpKind::kRmsNormForward, 2 * num_layers},
                                   {OpKind::kSwigluForward, num_layers}}));

  layout.recompute = Recompute::kFull;
  const Program full = *BuildTrainingProgram(DeepModel(), layout, 0);
  EXPECT_EQ(CountKinds(full, Phase::kForward), forward);
  EXPECT_EQ(
      CountKinds(full, Phase::kRecompute),
      (std::map<OpKind, int>{{OpKind::kRmsNormForward, num_layers},
                             {OpKind::kResidualRmsNormForward, num_layers},
                             {OpKind::kGemm, 3 * num_layers},
                             {OpKind::kRope, num_layers},
                             {OpKind::kAttentionForward, num_layers},
                             {OpKind::kSwigluForward, num_layers}}));
}

// Goal: recomputing saves the memory it is for. Method: bytes of the step
// arena of a model whose activations fill it: selective saves about the norms'
// outputs and activations, full keeps little more than each layer's input.
TEST(LowerRecomputeTest, SavesMemory) {
  ModelSpec model = DeepModel();
  model.sequence_length = 512;
  Layout layout{.tensor = 2, .num_microbatches = 2};
  const auto step_bytes = [&](Recompute recompute) {
    layout.recompute = recompute;
    return (*BuildTrainingProgram(model, layout, 0)).step_arena_bytes;
  };
  const int64_t tokens = model.sequence_length;
  const int64_t row = DTypeBytes(DType::kFloat32);
  const int64_t none = step_bytes(Recompute::kNone);
  const int64_t selective = step_bytes(Recompute::kCheap);
  const int64_t full = step_bytes(Recompute::kFull);
  // Two norms of a shard's tokens and half of the activations, of each layer
  // but the one under way.
  const int64_t saved =
      11 * tokens * row * (2 * model.hidden / 2 + model.ffn_hidden / 2);
  EXPECT_LE(selective, none - saved * 9 / 10);
  EXPECT_LT(full, selective / 3);
}

// Goal: the copies that attention in 8 bits reads live from the op that makes
// them to attention, and no byte of them reaches the backward pass. Method:
// which instructions name them, and the step arena of a deep model, which grows
// by less than one layer's copies, with and without recompute.
TEST(LowerRecomputeTest, AttentionCopiesLiveForOneOp) {
  ModelSpec model = DeepModel();
  model.head_dim = 64;
  model.sequence_length = 512;
  for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
    const Layout layout{.num_microbatches = 2, .recompute = recompute};
    const Program stored = *BuildTrainingProgram(model, layout, 0);
    ModelSpec in_float8 = model;
    in_float8.attention_format = AttentionFormat::kFloat8;
    const Program program = *BuildTrainingProgram(in_float8, layout, 0);
    const absl::Status status = CheckProgram(program);
    EXPECT_TRUE(status.ok()) << status;
    const std::map<OpKind, int> forward = CountKinds(program, Phase::kForward);
    EXPECT_EQ(forward.at(OpKind::kQuantizeAttention), 12 * 2);
    EXPECT_EQ(forward.at(OpKind::kFloat8AttentionForward), 12 * 2);
    EXPECT_FALSE(forward.contains(OpKind::kAttentionForward));
    int64_t bytes = 0;
    for (const Instruction& in : program.instructions) {
      if (in.kind != OpKind::kFloat8AttentionForward) continue;
      bytes = 0;
      for (size_t i = 0; i < 6; ++i) {
        const BufferId copy = in.inputs[i];
        bytes += program.buffers[static_cast<size_t>(copy)].bytes;
        for (const Instruction& other : program.instructions) {
          const bool reads = std::find(other.inputs.begin(), other.inputs.end(),
                                       copy) != other.inputs.end();
          EXPECT_EQ(reads, &other == &in) << other.name;
        }
      }
    }
    EXPECT_GT(bytes, 0);
    EXPECT_LE(program.step_arena_bytes, stored.step_arena_bytes + bytes);
  }
}

// Goal: a stage recomputes what its own setting says, whatever others do.
// Method: Programs of a pipeline of mixed stages against those of one setting,
// instruction by instruction.
TEST(LowerRecomputeTest, IsOfEachStage) {
  Layout mixed{.pipeline = 3, .num_microbatches = 4};
  SetRecompute("full, selective, none", &mixed);
  const std::vector<Program> programs =
      *BuildTrainingPrograms(DeepModel(), mixed);
  for (int32_t stage = 0; stage < 3; ++stage) {
    Layout uniform{.pipeline = 3, .num_microbatches = 4};
    uniform.recompute = mixed.recompute_of(stage);
    const Program expected = *BuildTrainingProgram(DeepModel(), uniform, stage);
    const Program& program = programs[static_cast<size_t>(stage)];
    EXPECT_EQ(program.step_arena_bytes, expected.step_arena_bytes);
    ASSERT_EQ(program.instructions.size(), expected.instructions.size());
    for (size_t i = 0; i < program.instructions.size(); ++i) {
      ASSERT_EQ(program.instructions[i].name, expected.instructions[i].name);
      ASSERT_EQ(program.instructions[i].waits, expected.instructions[i].waits);
    }
    EXPECT_TRUE(CheckProgram(program).ok());
  }
}

}  // namespace
}  // namespace millrace
