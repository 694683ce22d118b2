// Parameters that ranks gather from their owners.

#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "fault/replica_check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/equivalence_batches.h"
#include "tests/e2e/equivalence_job.h"
#include "worker/agent/parameter_hash.h"
#include "worker/communicate/in_process_communicator.h"

namespace millrace {
namespace {

using testing::Contains;

// By rank, the hashes of what it computed with in the last of three steps. A
// bit of what rank `flipped` gathered flips after it; negative: none.
std::vector<std::vector<uint64_t>> HashesAfterSteps(const Layout& layout,
                                                    int32_t flipped) {
  std::vector<std::vector<uint64_t>> hashes(layout.num_ranks());
  InProcessHub hub;
  const absl::Status status = RunRanks(
      SmallJob(), layout, [&] { return hub.NewFactory(); },
      [&](Rank rank, Trainer& trainer) -> absl::Status {
        for (int step = 0; step < 2; ++step) {
          RETURN_IF_ERROR(trainer.RunStep({}).status());
        }
        ASSIGN_OR_RETURN(const auto before, trainer.ReadState());
        std::vector<uint64_t>& of_rank = hashes[ToInt(rank)];
        of_rank.resize(layout.group_data());
        HashSlices(before, /*own=*/true, of_rank);
        RETURN_IF_ERROR(trainer.RunStep({}).status());
        ASSIGN_OR_RETURN(const auto after, trainer.ReadState());
        for (const StatePiece& piece : after) {
          if (ToInt(rank) != flipped || piece.is_current) continue;
          *reinterpret_cast<uint32_t*>(piece.data) ^= 1;
          break;
        }
        HashSlices(after, /*own=*/false, of_rank);
        return absl::OkStatus();
      });
  EXPECT_TRUE(status.ok()) << status;
  return hashes;
}

// Goal: what a step gathers is, to the bit, what its owners had before it, and
// a flipped bit of it is seen. Method: both stages of ZeRO that keep it, with
// tensor and pipeline shards, and with hybrid sharding.
TEST(GatheredParametersTest, AreTheirOwners) {
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

}  // namespace
}  // namespace millrace
