// Parameters that ranks gather from their owners.

#include "worker/train/gathered_parameters.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "base/status_macros.h"
#include "fault/replica_check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/lower/lower.h"
#include "tests/e2e/equivalence_batches.h"
#include "tests/e2e/equivalence_job.h"
#include "worker/communicate/in_process_communicator.h"

namespace millrace {
namespace {

using testing::Contains;

std::vector<Layout> LayoutsThatGather() {
  std::vector<Layout> layouts;
  for (const int32_t zero : {1, 2}) {
    for (Layout layout :
         {Layout{.data = 2, .micro_batch = 4},
          Layout{.data = 4, .micro_batch = 2},
          Layout{.data = 2, .tensor = 2, .micro_batch = 4},
          Layout{.pipeline = 2,
          .data = 2,
          .micro_batch = 1,
          .num_microbatches = 4},
          Layout{.data = 4, .data_groups = 2, .micro_batch = 2}}) {
      layout.zero = zero;
      layouts.push_back(layout);
    }
  }
  return layouts;
}

// By rank, the hashes of what it computed with in the last of three steps. A
// bit of what rank `flipped` gathered flips after it; negative: none.
std::vector<std::vector<uint64_t>> HashesAfterSteps(const Layout& layout,
                                                    int32_t flipped) {
  std::vector<std::vector<uint64_t>> hashes(layout.num_ranks());
  JobSpec job = SmallJob();
  job.training.precision = PrecisionName(layout);
  InProcessHub hub;
  const absl::Status status = RunRanks(
      job, layout, [&] { return hub.NewFactory(); },
      [&](Rank rank, Trainer& trainer) -> absl::Status {
        for (int step = 0; step < 2; ++step) {
          RETURN_IF_ERROR(trainer.RunStep({}).status());
        }
        ASSIGN_OR_RETURN(const bool is_begun, trainer.HashOwnSlice());
        EXPECT_TRUE(is_begun);
        RETURN_IF_ERROR(trainer.RunStep({}).status());
        ASSIGN_OR_RETURN(const auto after, trainer.ReadState());
        for (const StatePiece& piece : after) {
          // Every stage gathers norms as they are stored.
          if (ToInt(rank) != flipped || piece.is_current ||
              !absl::StrContains(piece.tensor, "norm")) {
            continue;
          }
          *reinterpret_cast<uint32_t*>(piece.data) ^= 1;
          break;
        }
        RETURN_IF_ERROR(trainer.HashGathered());
        ASSIGN_OR_RETURN(hashes[ToInt(rank)], trainer.SliceHashes());
        return absl::OkStatus();
      });
  EXPECT_TRUE(status.ok()) << status;
  return hashes;
}

// Goal: what a step gathers is, to the bit, what its owners had before it, and
// a flipped bit of it is seen. Method: both stages of ZeRO that keep it, with
// tensor and pipeline shards, and with hybrid sharding; parameters in fp32, and
// some of them in 8 bits.
TEST(GatheredParametersTest, AreTheirOwners) {
  for (Layout layout : LayoutsThatGather()) {
    for (const GemmFormat format :
         {GemmFormat::kAsStored, GemmFormat::kFloat8}) {
      layout.gemm_format = format;
      SCOPED_TRACE(LayoutToString(layout));
      ASSERT_TRUE(HasGathered(layout));
      const auto hashes = HashesAfterSteps(layout, /*flipped=*/-1);
      EXPECT_TRUE(CompareGathered(layout, hashes).agree);
      for (const auto& of_rank : hashes) {
        EXPECT_THAT(of_rank, testing::Each(testing::Ne(uint64_t{0})));
      }
      const ReplicaVerdict verdict =
          CompareGathered(layout, HashesAfterSteps(layout, /*flipped=*/1));
      const bool decides = layout.data > 2;
      EXPECT_THAT(decides ? verdict.minority : verdict.undecided,
                  Contains(Rank{1}));
      EXPECT_EQ(verdict.minority.size(), decides ? 1u : 0u);
    }
  }
}

bool Overlap(const Buffer& a, const Buffer& b) {
  return a.arena == b.arena && a.offset_bytes < b.offset_bytes + b.bytes &&
         b.offset_bytes < a.offset_bytes + a.bytes;
}

// Goal: a rank hashes its own slice before the step exactly where the step
// changes it after gathering, and each slice of all gathers once. Method: the
// instructions of training Programs behind each gather, in every format of a
// GPU's parameters.
TEST(GatheredParametersTest, OwnSliceIsHashedBeforeItChanges) {
  JobSpec job = SmallJob();
  // Blocks of 128, on two tensor ranks, too.
  job.model.hidden = job.model.ffn_hidden = 256;
  job.model.head_dim = 64;
  job.model.sequence_length = 128;
  for (Layout layout : LayoutsThatGather()) {
    for (const auto& [precision, format] :
         {std::pair(Precision::kFloat32, GemmFormat::kAsStored),
          std::pair(Precision::kFloat32, GemmFormat::kFloat8),
          std::pair(Precision::kBfloat16, GemmFormat::kAsStored),
          std::pair(Precision::kBfloat16, GemmFormat::kFloat8),
          std::pair(Precision::kBfloat16, GemmFormat::kFloat8Blocks)}) {
      layout.precision = precision;
      layout.gemm_format = format;
      SCOPED_TRACE(LayoutToString(layout));
      const MeshCoordinates rank = CoordinatesOf(layout, Rank{1});
      const auto built = BuildTrainingProgram(job.model, layout, rank);
      ASSERT_TRUE(built.ok()) << built.status();
      const Program& program = *built;
      const GatheredParts parts = GatheredPartsOf(program, rank);
      std::set<BufferId> updated, made_at_start;
      for (const GatheredPart& part : parts.before_step) {
        EXPECT_EQ(part.slice, layout.slice_of(rank.data));
        updated.insert(part.buffer);
      }
      std::map<BufferId, std::set<int32_t>> slices;
      for (const GatheredPart& part : parts.after_step) {
        EXPECT_TRUE(slices[part.buffer].insert(part.slice).second);
        if (part.slice == layout.slice_of(rank.data)) {
          made_at_start.insert(part.buffer);
        }
      }
      ASSERT_FALSE(updated.empty());
      std::set<BufferId> gathered;
      for (size_t i = 0; i < program.instructions.size(); ++i) {
        const Instruction& gather = program.instructions[i];
        const BufferId id = gather.outputs.empty() ? -1 : gather.outputs[0];
        if (gather.kind != OpKind::kAllGather || !slices.contains(id)) continue;
        gathered.insert(id);
        bool changes = false;
        for (size_t j = i + 1; j < program.instructions.size(); ++j) {
          for (const BufferId written :
               WrittenBuffers(program.instructions[j])) {
            changes |= Overlap(program.buffers[written], program.buffers[id]);
          }
        }
        EXPECT_EQ(updated.contains(id), changes) << gather.name;
        EXPECT_EQ(made_at_start.contains(id), !changes) << gather.name;
        EXPECT_EQ(slices[id].size() + (changes ? 1 : 0),
                  static_cast<size_t>(layout.group_data()))
            << gather.name;
      }
      EXPECT_EQ(gathered.size(), program.parameters.buckets.size());
    }
  }
  Layout keeps_none = {.data = 2, .micro_batch = 4, .zero = 3};
  const auto program = BuildTrainingProgram(job.model, keeps_none, {});
  ASSERT_TRUE(program.ok()) << program.status();
  const GatheredParts none = GatheredPartsOf(*program, {});
  EXPECT_TRUE(none.before_step.empty() && none.after_step.empty());
}

}  // namespace
}  // namespace millrace
