#include "worker/data/show_samples.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/data/random_batches.h"

namespace millrace {
namespace {

// Goal: documents are told apart and trained tokens are marked; what is too
// long is cut, and said so.
TEST(ShowSamplesTest, MarksDocumentsAndTrainedTokens) {
  Sample sample{.tokens = {11, 12, 13, 14, 15, 16, 17, 18},
                .document_starts = {0, 0, 0, 3, 3, 3, 3, 3}};
  EXPECT_EQ(DescribeSample(sample, nullptr, 4),
            "8 tokens, 2 documents, 8 trained\n"
            "  document 1, 3 tokens\n"
            "    + 11 12 13\n"
            "  document 2, 5 tokens\n"
            "    + 14 15 16 17\n"
            "    ... 1 more\n");
  sample.trained = {false, false, true, false, true, true, true, false};
  EXPECT_EQ(DescribeSample(sample, nullptr, 100),
            "8 tokens, 2 documents, 4 trained\n"
            "  document 1, 3 tokens\n"
            "    - 11 12\n"
            "    + 13\n"
            "  document 2, 5 tokens\n"
            "    - 14\n"
            "    + 15 16 17\n"
            "    - 18\n");
}

// Goal: samples are the step's, at most its global batch.
TEST(ShowSamplesTest, ReadsTheStepsSamples) {
  JobSpec job;
  job.model.sequence_length = 6;
  job.training.global_batch = 4;
  RandomBatches batches({.vocab_size = 50, .sequence_length = 6, .seed = 3});
  const auto all = ReadSamples(job, &batches, 2, 100);
  ASSERT_TRUE(all.ok()) << all.status();
  ASSERT_EQ(all->size(), 4u);
  const auto two = ReadSamples(job, &batches, 2, 2);
  ASSERT_TRUE(two.ok()) << two.status();
  ASSERT_EQ(two->size(), 2u);
  EXPECT_EQ((*two)[1].tokens, (*all)[1].tokens);
  EXPECT_NE((*two)[0].tokens, (*two)[1].tokens);
  EXPECT_EQ((*two)[1].document_starts, std::vector<int32_t>(6, 0));
}

// Batches whose tokens with odd numbers are not trained.
class MaskedBatches : public BatchSource {
 public:
  absl::Status Fill(const BatchRequest& request,
                    const BatchPointers& out) override {
    for (int64_t i = 0; i < request.num_sequences * 6; ++i) {
      out.tokens[i] = static_cast<int32_t>(i % 6);
      out.targets[i] = i % 2 == 0 ? -1 : static_cast<int32_t>(i % 6 + 1);
      out.document_starts[i] = 0;
    }
    return absl::OkStatus();
  }
};

// Goal: tokens are marked by the targets, in which a masked token is negative.
// The last token of a sample, which is a target alone, is shown too.
TEST(ShowSamplesTest, MarksMaskedTargets) {
  JobSpec job;
  job.model.sequence_length = 6;
  job.training.global_batch = 1;
  MaskedBatches batches;
  const auto samples = ReadSamples(job, &batches, 1, 1);
  ASSERT_TRUE(samples.ok()) << samples.status();
  EXPECT_EQ((*samples)[0].tokens, (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ((*samples)[0].trained,
            (std::vector<bool>{false, false, true, false, true, false, true}));
}

}  // namespace
}  // namespace millrace
