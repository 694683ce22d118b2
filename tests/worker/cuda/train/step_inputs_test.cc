#include "worker/cuda/train/step_inputs.h"

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/program/ops.h"
#include "tests/kernels/gpu_testing.h"

namespace millrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<int32_t> Offsets(const std::vector<int32_t>& starts,
                             int64_t num_sequences, int64_t max_documents,
                             int64_t expected_count) {
  std::vector<int32_t> offsets(max_documents + 1, -1);
  EXPECT_EQ(FillDocumentOffsets(
                {.document_starts = starts.data(),
                 .num_sequences = num_sequences,
                 .sequence_length =
                     static_cast<int64_t>(starts.size()) / num_sequences,
                 .max_documents = max_documents,
                 .offsets = offsets.data()}),
            expected_count);
  return offsets;
}

// Goal: offsets are where documents begin, a sequence's start among them,
// padded with the number of tokens, and never past their room. Method: by hand.
TEST(DocumentOffsetsTest, AreWhereDocumentsBegin) {
  EXPECT_THAT(Offsets({0, 0, 0, 0, 0, 0}, 2, 4, 2), ElementsAre(0, 3, 6, 6, 6));
  EXPECT_THAT(Offsets({0, 0, 2, 2, 0, 1, 1, 3}, 2, 6, 5),
              ElementsAre(0, 2, 4, 5, 7, 8, 8));
  EXPECT_THAT(Offsets({0, 1, 2, 3}, 1, 4, 4), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(Offsets({0, 1, 2, 3}, 1, 3, 4), ElementsAre(0, 1, 2, 4));
}

// Goal: few variants serve all steps, each with room enough, and none is asked
// for offsets that do not fit. Method: sweep all counts.
TEST(DocumentVariantTest, IsAPowerOfTwoWithRoom) {
  constexpr int64_t kSequences = 3, kMax = 43;
  EXPECT_EQ(DocumentVariant(kSequences, kSequences, kMax), kWholeSequences);
  for (int64_t count = kSequences + 1; count <= kMax; ++count) {
    const int64_t variant = DocumentVariant(count, kSequences, kMax);
    EXPECT_GE(variant, count);
    EXPECT_LE(variant, kMax);
    EXPECT_TRUE(variant == kMax || (variant & (variant - 1)) == 0) << variant;
    EXPECT_LT(variant, 2 * count);
  }
  EXPECT_EQ(DocumentVariant(kMax + 1, kSequences, kMax), kReadDocumentStarts);
}

constexpr int64_t kLength = 256;

// Every value says which token of which step and sequence it is; odd steps have
// a document that begins inside each sequence. Notes calls that overlap.
class CountingBatches : public BatchSource {
 public:
  static int32_t Value(const BatchRequest& request, int64_t sequence,
                       int64_t t) {
    return static_cast<int32_t>(
        ((request.step * 2 + (request.split == DataSplit::kValidation)) * 100 +
         sequence) *
            kLength +
        t);
  }
  absl::Status Fill(const BatchRequest& request,
                    const BatchPointers& out) override {
    if (in_call_.exchange(true)) overlapped = true;
    if (request.step == fails_at) {
      in_call_ = false;
      return absl::DataLossError("tokens.bin: token 17 is cut off");
    }
    for (int64_t i = 0; i < request.num_sequences; ++i) {
      for (int64_t t = 0; t < kLength; ++t) {
        const int64_t at = i * kLength + t;
        out.tokens[at] = Value(request, request.first_sequence_idx + i, t);
        out.targets[at] = out.tokens[at] + 1;
        out.document_starts[at] = request.step % 2 == 1 && t >= 100 ? 100 : 0;
      }
    }
    global_batch[static_cast<int>(request.split)] = request.global_batch;
    in_call_ = false;
    return absl::OkStatus();
  }
  int64_t fails_at = -1;
  std::array<std::atomic<int64_t>, 2> global_batch = {};  // By split.
  std::atomic<bool> overlapped = false;

 private:
  std::atomic<bool> in_call_ = false;
};

class StepInputFeedTest : public testing::Test {
 protected:
  void SetUp() override {
    options_.job.model.sequence_length = kLength;
    options_.job.training.num_steps = 10;
    options_.job.training.optimizer.learning_rate = 0.5;
    options_.job.training.optimizer.decay = LearningRateDecay::kNone;
    options_.layout = {.data = 2, .micro_batch = 2, .num_microbatches = 3};
    options_.coordinates = {.data = 1};
    options_.batches = &batches_;
    auto feed = StepInputFeed::Create(options_);
    ASSERT_TRUE(feed.ok()) << feed.status();
    feed_ = *std::move(feed);
    scalars_ = std::make_unique<DeviceBuffer<double>>(
        ToDevice(std::vector<double>(kNumStepScalars, 7)));
  }

  template <typename T>
  std::vector<T> Read(const T* device, int64_t count) {
    std::vector<T> host(count);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(host.data(), device, count * sizeof(T),
                         cudaMemcpyDeviceToHost),
              cudaSuccess);
    return host;
  }

  void ExpectTokens(const BatchRequest& request, int64_t num_microbatches) {
    const auto tokens =
        Read(feed_->inputs().tokens, num_microbatches * 2 * kLength);
    const auto targets =
        Read(feed_->inputs().targets, num_microbatches * 2 * kLength);
    const auto starts =
        Read(feed_->inputs().document_starts, num_microbatches * 2 * kLength);
    for (int64_t i = 0; i < num_microbatches * 2; ++i) {
      for (int64_t t = 0; t < kLength; ++t) {
        const int32_t value =
            CountingBatches::Value(request, request.first_sequence_idx + i, t);
        ASSERT_EQ(tokens[i * kLength + t], value) << i << ", " << t;
        ASSERT_EQ(targets[i * kLength + t], value + 1) << i << ", " << t;
        ASSERT_EQ(starts[i * kLength + t],
                  request.step % 2 == 1 && t >= 100 ? 100 : 0);
      }
    }
  }

  StepInputOptions options_;
  CountingBatches batches_;
  std::unique_ptr<StepInputFeed> feed_;
  std::unique_ptr<DeviceBuffer<double>> scalars_;
};

// Goal: each step finds its own batch, documents, learning rate, number and
// vote on the device, whether it was read ahead or not. Method: steps in order
// with and without prefetching, a jump, a validation pass in between.
TEST_F(StepInputFeedTest, BringsEachStepItsInputs) {
  int64_t num_prefetched = 0;
  for (const int64_t step : {1, 2, 3, 4, 7, 8}) {
    const auto variant = feed_->EnqueueTrainingStep(
        step, {.vote_to_stop = step == 3}, scalars_->data(), nullptr);
    ASSERT_TRUE(variant.ok()) << variant.status();
    EXPECT_EQ(*variant, step % 2 == 1 ? 4 : kWholeSequences);
    ExpectTokens(
        {.split = DataSplit::kTraining, .step = step, .first_sequence_idx = 6},
        3);
    EXPECT_EQ(batches_.global_batch[0], 12);
    const auto optimizer = Read(feed_->inputs().optimizer, 1);
    EXPECT_EQ(optimizer[0].step, step);
    EXPECT_EQ(optimizer[0].learning_rate,
              LearningRateAt(options_.job.training, step));
    EXPECT_THAT(Read(scalars_->data(), kNumStepScalars),
                ElementsAre(7, 7, step == 3 ? 1 : 0, 0));
    if (step % 2 == 1) {
      const int64_t row = feed_->inputs().max_documents + 1;
      const auto offsets = Read(feed_->inputs().document_offsets, 3 * row);
      for (int m = 0; m < 3; ++m) {
        EXPECT_EQ(offsets[m * row + 1], 100);
        EXPECT_EQ(offsets[m * row + 2], kLength);
        EXPECT_EQ(offsets[m * row + 4], 2 * kLength);
      }
    }
    if (step != 2) {
      feed_->Prefetch(step + 1);
      ++num_prefetched;
    }
    ASSERT_TRUE(
        feed_->EnqueueValidationPass(step, false, scalars_->data(), nullptr)
            .ok());
    ExpectTokens({.split = DataSplit::kValidation,
                  .step = step,
                  .first_sequence_idx = 2},
                 1);
    EXPECT_EQ(batches_.global_batch[1], 4);
  }
  EXPECT_GT(num_prefetched, 0);
  EXPECT_FALSE(batches_.overlapped);
}

// Goal: a step that is run again gets another replica's samples where it asks
// for them, and the next steps their own.
TEST_F(StepInputFeedTest, ExchangesSamples) {
  for (const int64_t step : {1, 2, 3}) {
    for (const int32_t shift : {0, 1, 0}) {
      ASSERT_TRUE(feed_
                      ->EnqueueTrainingStep(step, {.sample_shift = shift},
                                            scalars_->data(), nullptr)
                      .ok());
      ExpectTokens({.split = DataSplit::kTraining,
                    .step = step,
                    .first_sequence_idx = shift == 0 ? 6 : 0},
                   3);
      if (step == 2 && shift == 1) break;
    }
    feed_->Prefetch(step + 1);
  }
}

// Goal: an error of the data comes with the step that needs the batch, not
// before. Method: step 3 fails; it is read ahead after step 2.
TEST_F(StepInputFeedTest, ReportsABadBatchWithItsStep) {
  batches_.fails_at = 3;
  ASSERT_TRUE(
      feed_->EnqueueTrainingStep(2, {}, scalars_->data(), nullptr).ok());
  feed_->Prefetch(3);
  const auto variant =
      feed_->EnqueueTrainingStep(3, {}, scalars_->data(), nullptr);
  EXPECT_EQ(variant.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(variant.status().message()), HasSubstr("token 17"));
}

}  // namespace
}  // namespace millrace
