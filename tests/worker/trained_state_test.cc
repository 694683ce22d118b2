// Goal: the comparison that tests of layouts on GPUs rest on calls equal states
// equal, and sees a tensor that was not trained, a gradient that is wrong by a
// factor, and elements that nobody or two ranks hold. Method: a small model on
// one CPU rank, trained under two ways to cut the batch, and damaged by hand.

#include "tests/worker/trained_state.h"

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/equivalence_batches.h"
#include "tests/e2e/equivalence_job.h"
#include "tests/worker/data/temporary_folder.h"
#include "worker/communicate/in_process_communicator.h"
#include "worker/cpu/trainer.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

struct Trained {
  WholeState before;
  WholeState after;
  std::vector<StatePiece> pieces;  // Pieces of `after`, in its memory.
};

// Pieces that lie in `state`, as those of one rank.
std::vector<StatePiece> PiecesOf(const std::vector<StatePiece>& like,
                                 WholeState* state) {
  std::vector<StatePiece> pieces = like;
  for (StatePiece& piece : pieces) {
    piece.data = (*state)[piece.tensor].data() + piece.begin;
  }
  return pieces;
}

std::unique_ptr<Trained> TrainWith(const Layout& layout) {
  const JobSpec job = SmallJob();
  SyntheticBatches batches(job.model.vocab_size, job.model.sequence_length);
  InProcessHub hub;
  const auto factory = hub.NewFactory();
  auto trainer = CreateCpuTrainer({.job = job,
                                   .layout = layout,
                                   .rank = Rank{0},
                                   .communicators = factory.get(),
                                   .batches = &batches});
  EXPECT_TRUE(trainer.ok()) << trainer.status();
  auto trained = std::make_unique<Trained>();
  trained->before = *CopyWholeState(*(*trainer)->ReadState());
  for (int i = 0; i < 10; ++i) EXPECT_TRUE((*trainer)->RunStep({}).ok());
  const std::vector<StatePiece> pieces = *(*trainer)->ReadState();
  trained->after = *CopyWholeState(pieces);
  trained->pieces = PiecesOf(pieces, &trained->after);
  return trained;
}

class TrainedStateTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    reference_ = TrainWith({.micro_batch = 8}).release();
  }
  static void TearDownTestSuite() { delete reference_; }

  // By way of text, as between processes.
  static absl::StatusOr<StateError> ErrorOf(
      const std::vector<StatePiece>& pieces) {
    StateDistances distances, read;
    const absl::Status added =
        AddDistances(pieces, reference_->after, &distances);
    if (!added.ok()) return added;
    const absl::Status parsed =
        AddDistancesFromText(DistancesToText(distances), &read);
    if (!parsed.ok()) return parsed;
    return WorstErrors(read, reference_->before, reference_->after);
  }

  static Trained* reference_;
};
Trained* TrainedStateTest::reference_ = nullptr;

TEST_F(TrainedStateTest, EqualStatesAreEqual) {
  const auto error = ErrorOf(reference_->pieces);
  ASSERT_TRUE(error.ok()) << error.status();
  EXPECT_EQ(error->parameters.error, 0);
  EXPECT_EQ(error->first_moments.error, 0);
  EXPECT_EQ(error->second_moments.error, 0);
}

// Another order of the same sums: errors of fp32's rounding, and not none.
TEST_F(TrainedStateTest, RoundingIsSmall) {
  const auto other = TrainWith({.micro_batch = 1, .num_microbatches = 8});
  const auto error = ErrorOf(other->pieces);
  ASSERT_TRUE(error.ok()) << error.status();
  RecordProperty("parameters", std::to_string(error->parameters.error));
  EXPECT_GT(error->first_moments.error, 0);
  EXPECT_LT(error->first_moments.error, 1e-4);
  EXPECT_LT(error->second_moments.error, 1e-4);
  EXPECT_LT(error->parameters.error, 1e-3);
}

TEST_F(TrainedStateTest, SeesWhatIsWrong) {
  const std::string name = "model.layers.1.mlp.down_proj.weight";
  WholeState untrained = reference_->after;
  ASSERT_TRUE(untrained.contains(name)) << untrained.begin()->first;
  untrained[name] = reference_->before.at(name);
  auto error = ErrorOf(PiecesOf(reference_->pieces, &untrained));
  ASSERT_TRUE(error.ok()) << error.status();
  EXPECT_NEAR(error->parameters.error, 1, 1e-6);
  EXPECT_EQ(error->parameters.name, name);
  EXPECT_EQ(error->first_moments.error, 0);

  WholeState doubled = reference_->after;
  for (float& moment : doubled[name + ".exp_avg"]) moment *= 2;
  error = ErrorOf(PiecesOf(reference_->pieces, &doubled));
  ASSERT_TRUE(error.ok()) << error.status();
  EXPECT_NEAR(error->first_moments.error, 1, 1e-6);
  EXPECT_EQ(error->first_moments.name, name + ".exp_avg");
}

TEST_F(TrainedStateTest, EveryElementHasOneOwner) {
  std::vector<StatePiece> pieces = reference_->pieces;
  const StatePiece last = pieces.back();
  pieces.pop_back();
  EXPECT_THAT(std::string(ErrorOf(pieces).status().message()),
              HasSubstr("were compared"));
  pieces.push_back(last);
  pieces.push_back(last);
  EXPECT_THAT(std::string(ErrorOf(pieces).status().message()),
              HasSubstr("were compared"));
  pieces.back().is_owner = false;
  EXPECT_TRUE(ErrorOf(pieces).ok());
  StatePiece part = last;
  --part.end;
  EXPECT_THAT(std::string(CopyWholeState({part}).status().message()),
              HasSubstr("the rank holds"));
}

TEST_F(TrainedStateTest, FilesKeepEveryBit) {
  TemporaryFolder folder;
  ASSERT_TRUE(SaveWholeState(reference_->after, folder.path()).ok());
  const auto read = LoadWholeState(folder.path());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, reference_->after);
}

}  // namespace
}  // namespace millrace
