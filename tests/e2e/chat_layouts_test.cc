// Goal of this file: a job that names chat records trains alike on every
// layout, packed or not.

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/equivalence_job.h"
#include "tests/planner/planner_testing.h"
#include "tests/worker/data/chat_data.h"
#include "tests/worker/data/temporary_folder.h"
#include "worker/data/open_batches.h"
#include "worker/data/prepare.h"

namespace millrace {
namespace {

constexpr int64_t kChatSteps = 5;
// As in equivalence_test.cc.
constexpr double kChatTolerance = 2e-5;

class ChatLayoutsTest : public testing::Test {
 protected:
  ChatLayoutsTest() : job_(SmallJob()) {
    WriteChatTokenizer(folder_.path());
    job_.model.vocab_size = kChatVocabSize;
    job_.model.sequence_length = 128;
    job_.data.synthetic = false;
    job_.data.tokenizer = folder_.path();
    job_.data.cache_directory = folder_ / "cache";
    job_.data.validation_fraction = 0.2;
  }

  JobResult Run(const Layout& layout) {
    return RunJob(job_, layout, kChatSteps, [](const JobSpec& job) {
      auto batches = PrepareAndOpenBatches(job, 1);
      CHECK(batches.ok()) << batches.status();
      return *std::move(batches);
    });
  }
  static void ExpectSameLosses(const JobResult& actual,
                               const JobResult& expected) {
    ASSERT_EQ(actual.losses.size(), static_cast<size_t>(kChatSteps))
        << actual.status;
    for (size_t i = 0; i < actual.losses.size(); ++i) {
      EXPECT_NEAR(actual.losses[i] / expected.losses[i], 1, kChatTolerance);
      EXPECT_NEAR(actual.gradient_norms[i] / expected.gradient_norms[i], 1,
                  kChatTolerance);
    }
  }

  TemporaryFolder folder_;
  JobSpec job_;
};

// Goal: layouts give the same losses. Method: a mixture of chat and text, whose
// rows train different shares of their tokens.
TEST_F(ChatLayoutsTest, LayoutsGiveTheSameLosses) {
  std::string text;
  for (int i = 0; i < 2000; ++i) absl::StrAppend(&text, "Line ", i, ".\n");
  job_.data.sources = {
      {.files = {folder_.Write("chats.jsonl", ChatLines(0, 100))},
       .kind = "chat",
       .column = "",
       .weight = 3},
      {.files = {folder_.Write("a.txt", text)}}};
  const JobResult expected = Run({.micro_batch = 8});
  ASSERT_TRUE(expected.status.ok()) << expected.status;
  EXPECT_LT(expected.losses.back(), expected.losses.front());
  for (const Layout& layout :
       {Layout{.micro_batch = 1, .num_microbatches = 8},
        Layout{.data = 2, .micro_batch = 2, .num_microbatches = 2, .zero = 1},
        Layout{.pipeline = 2,
        .tensor = 2,
        .micro_batch = 2,
        .num_microbatches = 4}}) {
    SCOPED_TRACE(LayoutToString(layout));
    const JobResult actual = Run(layout);
    ASSERT_TRUE(actual.status.ok()) << actual.status;
    ExpectSameLosses(actual, expected);
  }
}

// Goal: packed conversations teach what each teaches in a sequence of its own.
// Method: steps that read all of them.
TEST_F(ChatLayoutsTest, PackedEqualsUnpacked) {
  constexpr int kNumChats = 10;
  constexpr int64_t kNumPacked = 4;
  job_.data.validation_fraction = 0;  // So runs end at their validation.
  job_.data.sources = {
      {.files = {folder_.Write("chats.jsonl", ChatLines(0, kNumChats))},
       .kind = "chat",
       .column = ""}};
  const auto data =
      PrepareData({.data = job_.data, .vocab_size = job_.model.vocab_size});
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_THAT(*DescribeEpochs(job_, *data),
              testing::HasSubstr("10 samples in 4 sequences"));
  job_.training.global_batch = kNumPacked;
  const JobResult packed =
      Run({.data = 2, .micro_batch = 1, .num_microbatches = 2});
  job_.data.packing = false;
  job_.training.global_batch = kNumChats;
  const JobResult unpacked = Run({.micro_batch = kNumChats});
  ASSERT_EQ(unpacked.losses.size(), static_cast<size_t>(kChatSteps));
  ExpectSameLosses(packed, unpacked);
}

}  // namespace
}  // namespace millrace
