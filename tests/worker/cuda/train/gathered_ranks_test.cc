// Hashes of the parameters that ranks on GPUs gather from each other. Needs two
// GPUs.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "fault/replica_check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/program/copy_engines.h"
#include "tests/e2e/equivalence_batches.h"
#include "tests/worker/cuda/rank_processes.h"
#include "tests/worker/cuda/train/gpu_job.h"
#include "worker/communicate/directory_rendezvous_store.h"
#include "worker/cuda/train/trainer.h"

namespace millrace {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(60);
constexpr int32_t kRanks = 2;
constexpr int kChecks = 3;

// Flips a bit of a norm's weight that this rank gathered. Every rank has one
// that the other owns.
absl::Status FlipGatheredBit(Trainer& trainer) {
  ASSIGN_OR_RETURN(const std::vector<StatePiece> pieces,
                   trainer.StateInPlace());
  for (const StatePiece& piece : pieces) {
    if (piece.is_current || !absl::StrContains(piece.tensor, "norm")) continue;
    uint32_t word = 0;
    if (cudaMemcpy(&word, piece.data, sizeof(word), cudaMemcpyDefault) !=
        cudaSuccess) {
      return absl::InternalError("a weight cannot be read");
    }
    word ^= 1;
    if (cudaMemcpy(piece.data, &word, sizeof(word), cudaMemcpyDefault) !=
        cudaSuccess) {
      return absl::InternalError("a weight cannot be written");
    }
    return absl::OkStatus();
  }
  return absl::InternalError("this rank has gathered no norm");
}

// Hashes what each of several steps gathers, and leaves the hashes with the
// store. Before the last of them a bit of it flips on rank 1, if `flips`. The
// results of steps are taken late, as workers do.
absl::Status HashSteps(const Layout& layout, bool flips, Rank rank,
                       RendezvousStore& store) {
  JobSpec job = GpuJob();
  SyntheticBatches batches(job.model.vocab_size, job.model.sequence_length);
  ASSIGN_OR_RETURN(
      std::unique_ptr<Trainer> trainer,
      CreateCudaTrainer(
          {.job = job, .layout = layout, .rank = rank, .batches = &batches},
          ToInt(rank), &store));
  // The third step and all later ones are graphs.
  for (int i = 0; i < 3; ++i) RETURN_IF_ERROR(trainer->RunStep({}).status());
  for (int check = 0; check < kChecks; ++check) {
    ASSIGN_OR_RETURN(const bool is_begun, trainer->HashOwnSlice());
    if (!is_begun) return absl::InternalError("nothing is hashed");
    RETURN_IF_ERROR(trainer->RunStep({}).status());
    if (flips && check + 1 == kChecks && ToInt(rank) == 1) {
      RETURN_IF_ERROR(FlipGatheredBit(*trainer));
    }
    RETURN_IF_ERROR(trainer->HashGathered());
    // Gathers again, while hashes of the step before are made.
    RETURN_IF_ERROR(trainer->RunStep({}).status());
    ASSIGN_OR_RETURN(const std::vector<uint64_t> hashes,
                     trainer->SliceHashes());
    RETURN_IF_ERROR(store.Set(absl::StrCat("hashes/", check, "/", ToInt(rank)),
                              absl::StrJoin(hashes, " ")));
  }
  return trainer->LastResult().status();
}

// By rank, what it left with the store.
std::vector<std::vector<uint64_t>> HashesOf(RendezvousStore& store, int check) {
  std::vector<std::vector<uint64_t>> hashes;
  for (int32_t rank = 0; rank < kRanks; ++rank) {
    const std::string text =
        *store.Get(absl::StrCat("hashes/", check, "/", rank), absl::Seconds(1));
    for (const absl::string_view word :
         absl::StrSplit(text, ' ', absl::SkipEmpty())) {
      if (static_cast<size_t>(rank) == hashes.size()) hashes.emplace_back();
      EXPECT_TRUE(absl::SimpleAtoi(word, &hashes.back().emplace_back()));
    }
  }
  return hashes;
}

struct Format {
  Precision precision;
  GemmFormat gemm_format;
};

std::vector<Layout> LayoutsThatGather() {
  std::vector<Layout> layouts;
  for (const int32_t zero : {1, 2}) {
    for (const Format& format :
         {Format{Precision::kFloat32, GemmFormat::kAsStored},
          Format{Precision::kBfloat16, GemmFormat::kAsStored},
          Format{Precision::kBfloat16, GemmFormat::kFloat8},
          Format{Precision::kBfloat16, GemmFormat::kFloat8Blocks}}) {
      Layout layout = {
          .data = 2, .micro_batch = 1, .num_microbatches = 4, .zero = zero};
      layout.precision = format.precision;
      layout.gemm_format = format.gemm_format;
      layouts.push_back(layout);
      layout.copy_engines = CopyEngineUseOf(layout);
      if (layout != layouts.back()) layouts.push_back(layout);
    }
  }
  return layouts;
}

// Goal: what GPUs gather is, to the bit, what its owner had before the step,
// and a flipped bit of it is seen. Method: both stages of ZeRO that keep it,
// through NCCL and by copy engines, in every format of parameters; the bit
// flips in fp32, where the state in place has what was gathered.
TEST(CudaGatheredRanksTest, GatheredParametersAreTheirOwners) {
  ASSERT_GE(CountDevices(), kRanks) << "this test needs two GPUs";
  for (const Layout& layout : LayoutsThatGather()) {
    SCOPED_TRACE(LayoutToString(layout));
    ASSERT_TRUE(HasGathered(layout));
    for (const bool flips : {false, true}) {
      if (flips && layout.precision != Precision::kFloat32) continue;
      RankProcesses ranks;
      DirectoryRendezvousStore store(ranks.folder() + "/store");
      ASSERT_EQ(ranks.RunAll(kRanks, kTimeout,
                             [&](Rank rank) {
                               return HashSteps(layout, flips, rank, store);
                             }),
                absl::OkStatus());
      for (int check = 0; check < kChecks; ++check) {
        const auto hashes = HashesOf(store, check);
        ASSERT_EQ(hashes.size(), static_cast<size_t>(kRanks));
        for (const auto& of_rank : hashes) {
          EXPECT_EQ(of_rank.size(), static_cast<size_t>(layout.data));
          EXPECT_THAT(of_rank, testing::Each(testing::Ne(uint64_t{0})));
        }
        const bool differs = flips && check + 1 == kChecks;
        EXPECT_EQ(CompareGathered(layout, hashes).agree, !differs) << check;
        if (check > 0) {
          EXPECT_NE(hashes, HashesOf(store, check - 1));
        }
      }
    }
  }
}

}  // namespace
}  // namespace millrace
