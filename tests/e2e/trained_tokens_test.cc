// Goal of this file: the loss and its gradient are divided by the trained
// tokens of the whole global batch, on every layout. In 2024 several libraries
// averaged the means of micro-batches instead, which weighs tokens of sparsely
// trained micro-batches too heavily.

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/equivalence_batches.h"
#include "tests/e2e/equivalence_job.h"
#include "tests/planner/planner_testing.h"
#include "tests/worker/data/temporary_folder.h"
#include "worker/data/sample_batches.h"

namespace millrace {
namespace {

constexpr int64_t kMaskedSteps = 6;
// As in equivalence_test.cc.
constexpr double kMaskedTolerance = 2e-5;

// SyntheticBatches where sequence i trains its last tokens alone, and how many
// differs from sequence to sequence as far as it can.
class MaskedBatches : public BatchSource {
 public:
  MaskedBatches(const ModelSpec& model, std::vector<int64_t> num_trained)
      : batches_(model.vocab_size, model.sequence_length),
        sequence_length_(model.sequence_length),
        num_trained_(std::move(num_trained)) {}

  absl::Status Fill(const BatchRequest& request,
                    const BatchPointers& out) override {
    if (absl::Status status = batches_.Fill(request, out); !status.ok()) {
      return status;
    }
    for (int64_t i = 0; i < request.num_sequences; ++i) {
      int32_t* targets = out.targets + i * sequence_length_;
      std::fill(targets,
                targets + sequence_length_ -
                    num_trained_.at(request.first_sequence_idx + i),
                -1);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<double> TrainedShare(DataSplit, int64_t,
                                      int64_t global_batch) override {
    int64_t count = 0;
    for (int64_t i = 0; i < global_batch; ++i) count += num_trained_.at(i);
    return static_cast<double>(count) /
           static_cast<double>(global_batch * sequence_length_);
  }

 private:
  SyntheticBatches batches_;
  const int64_t sequence_length_;
  const std::vector<int64_t> num_trained_;
};

JobResult RunMasked(const JobSpec& job, const Layout& layout,
                    const std::vector<int64_t>& num_trained) {
  return RunJob(job, layout, kMaskedSteps, [&](const JobSpec& job) {
    return std::make_unique<MaskedBatches>(job.model, num_trained);
  });
}

void ExpectSameSteps(const JobResult& actual, const JobResult& expected) {
  for (int64_t i = 0; i < kMaskedSteps; ++i) {
    EXPECT_NEAR(actual.losses[i] / expected.losses[i], 1, kMaskedTolerance)
        << i;
    EXPECT_NEAR(actual.gradient_norms[i] / expected.gradient_norms[i], 1,
                kMaskedTolerance)
        << i;
  }
}

void ExpectSameTraining(const JobResult& actual, const JobResult& expected) {
  ASSERT_TRUE(actual.status.ok()) << actual.status;
  ExpectSameSteps(actual, expected);
}

// Goal: how samples are spread over micro-batches and ranks changes nothing,
// however unevenly their tokens are trained. Method: the same samples as 1 x 8,
// 2 x 4, 4 x 2 and 8 x 1, and on every axis and ZeRO stage. A mean of means
// would be off by whole factors here: half of the sequences train one token.
TEST(TrainedTokensTest, LayoutsDivideByTheGlobalBatch) {
  const JobSpec job = SmallJob();
  const std::vector<int64_t> num_trained = {1, 32, 1, 7, 20, 1, 0, 1};
  const JobResult expected = RunMasked(job, {.micro_batch = 8}, num_trained);
  ASSERT_TRUE(expected.status.ok()) << expected.status;
  // A mean over all tokens would begin at ln(128) * 63 / 256 = 1.2.
  EXPECT_NEAR(expected.losses[0], std::log(128.0), 0.3);
  const std::vector<Layout> layouts = {
      {.micro_batch = 4, .num_microbatches = 2},
      {.micro_batch = 2, .num_microbatches = 4},
      {.micro_batch = 1, .num_microbatches = 8},
      {.data = 2, .micro_batch = 4},
      {.data = 2, .micro_batch = 1, .num_microbatches = 4, .zero = 1},
      {.data = 4, .micro_batch = 1, .num_microbatches = 2, .zero = 2},
      {.data = 3,
       .micro_batch = 1,
       .num_microbatches = 2,
       .extra_microbatches = 2,
       .zero = 1},
      {.data = 2, .micro_batch = 2, .num_microbatches = 2, .zero = 3},
      {.tensor = 2, .micro_batch = 2, .num_microbatches = 4},
      {.pipeline = 2, .micro_batch = 1, .num_microbatches = 8},
      {.pipeline = 2, .tensor = 2, .micro_batch = 4, .num_microbatches = 2},
      {.data = 2, .tensor = 2, .micro_batch = 4, .zero = 1},
  };
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(LayoutToString(layout));
    ExpectSameTraining(RunMasked(job, layout, num_trained), expected);
  }
}

// Goal: it is the mean over trained tokens, and not another factor that all
// layouts share. Method: sequences that train nothing are as if they were not
// there; clipping sees the true norm.
TEST(TrainedTokensTest, UntrainedSequencesCountNothing) {
  for (const double clip_norm : {0.0, 0.5, 100.0}) {
    JobSpec half = SmallJob();
    half.training.gradient_clip_norm = clip_norm;
    half.training.global_batch = 4;
    const JobResult expected = RunJob(half, {.micro_batch = 4}, kMaskedSteps);
    JobSpec whole = half;
    whole.training.global_batch = 8;
    const JobResult actual =
        RunMasked(whole, {.data = 2, .micro_batch = 2, .num_microbatches = 2},
                  {32, 32, 32, 32, 0, 0, 0, 0});
    ExpectSameTraining(actual, expected);
    // Two passes of 2 sequences a replica: all of them trained.
    EXPECT_GT(actual.validation_loss, 0);
  }
}

// Goal: validation divides by trained tokens too, over all passes.
TEST(TrainedTokensTest, ValidationIsAMeanOverTrainedTokens) {
  const JobSpec job = SmallJob();
  const std::vector<int64_t> num_trained = {32, 3, 0, 1, 9, 9, 9, 9};
  const JobResult one = RunMasked(job, {.micro_batch = 8}, num_trained);
  const JobResult two = RunMasked(
      job, {.data = 2, .tensor = 2, .micro_batch = 4, .zero = 1}, num_trained);
  ASSERT_TRUE(one.status.ok() && two.status.ok());
  EXPECT_NEAR(one.validation_loss, two.validation_loss,
              kMaskedTolerance * one.validation_loss);
  EXPECT_NEAR(one.validation_loss, one.losses.back(), 0.5);
}

// Goal: samples packed into shared sequences teach what each teaches in a
// sequence of its own. Method: eight samples that fill four sequences, all of
// them in every step; losses and gradient norms of packed and unpacked
// training, packed over ranks and micro-batches too.
TEST(TrainedTokensTest, PackedEqualsUnpacked) {
  const TemporaryFolder folder;
  JobSpec job = SmallJob();
  const std::string prefix = folder.path() + "/samples";
  auto writer = SampleWriter::Create(prefix, job.model.vocab_size);
  ASSERT_TRUE(writer.ok()) << writer.status();
  int32_t next = 3;
  // One token more than places.
  for (const size_t length : {20, 12, 25, 7, 16, 16, 30, 2}) {
    std::vector<int32_t> tokens;
    std::vector<uint8_t> trained;
    for (size_t t = 0; t <= length; ++t) {
      tokens.push_back(next = (next * 5 + 7) % 128);
      trained.push_back(t > length / 3 ? 1 : 0);
    }
    ASSERT_TRUE(writer->Add(tokens, trained).ok());
  }
  ASSERT_TRUE(writer->Finish().ok());
  const auto run = [&](bool packs, int64_t global_batch, const Layout& layout) {
    job.training.global_batch = global_batch;
    return RunJob(job, layout, kMaskedSteps, [&](const JobSpec&) {
      auto batches =
          SampleBatches::Open({.prefixes = {prefix},
                               .name = "samples",
                               .vocab_size = job.model.vocab_size,
                               .sequence_length = job.model.sequence_length,
                               .packs = packs});
      CHECK(batches.ok()) << batches.status();
      CHECK((*batches)->num_samples(DataSplit::kTraining) == global_batch);
      return *std::move(batches);
    });
  };
  const JobResult unpacked = run(false, 8, {.micro_batch = 8});
  // Nothing is held out, so the run ends at its validation.
  ASSERT_EQ(unpacked.losses.size(), static_cast<size_t>(kMaskedSteps))
      << unpacked.status;
  EXPECT_LT(unpacked.losses.back(), unpacked.losses.front());
  for (const Layout& layout :
       {Layout{.micro_batch = 4},
        Layout{.data = 2, .micro_batch = 1, .num_microbatches = 2, .zero = 1},
        Layout{.pipeline = 2,
        .tensor = 2,
        .micro_batch = 2,
        .num_microbatches = 2}}) {
    SCOPED_TRACE(LayoutToString(layout));
    const JobResult packed = run(true, 4, layout);
    ASSERT_EQ(packed.losses.size(), static_cast<size_t>(kMaskedSteps))
        << packed.status;
    ExpectSameSteps(packed, unpacked);
  }
}

// Goal: a global batch without a trained token stops the job, on every rank.
TEST(TrainedTokensTest, NothingTrainedIsAnError) {
  const JobSpec job = SmallJob();
  for (const Layout& layout :
       {Layout{.micro_batch = 8},
        Layout{.data = 2, .micro_batch = 2, .num_microbatches = 2}}) {
    const JobResult result = RunMasked(job, layout, std::vector<int64_t>(8, 0));
    EXPECT_TRUE(absl::IsInvalidArgument(result.status)) << result.status;
    EXPECT_THAT(
        std::string(result.status.message()),
        testing::HasSubstr("0 trained tokens in the 8 sequences of step 1"));
  }
}

}  // namespace
}  // namespace millrace
