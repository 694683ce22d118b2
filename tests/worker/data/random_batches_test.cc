#include "worker/data/random_batches.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace millrace {
namespace {

constexpr int64_t kRandomVocabSize = 50;
constexpr int64_t kLength = 400;
constexpr int64_t kGlobalBatch = 6;

struct RandomBatch {
  explicit RandomBatch(int64_t num_sequences)
      : tokens(num_sequences * kLength, -1),
        targets(num_sequences * kLength, -1),
        document_starts(num_sequences * kLength, -1) {}
  std::vector<int32_t> tokens, targets, document_starts;
  friend bool operator==(const RandomBatch&, const RandomBatch&) = default;
};

struct Wanted {
  uint64_t seed = 7;
  DataSplit split = DataSplit::kTraining;
  int64_t step = 1;
  int64_t first = 0;
  int64_t count = kGlobalBatch;
};
RandomBatch Read(const Wanted& wanted) {
  RandomBatches batches({.vocab_size = kRandomVocabSize,
                         .sequence_length = kLength,
                         .seed = wanted.seed});
  RandomBatch batch(wanted.count);
  const absl::Status status = batches.Fill(
      {wanted.split, wanted.step, kGlobalBatch, wanted.first, wanted.count},
      {batch.tokens.data(), batch.targets.data(),
       batch.document_starts.data()});
  EXPECT_TRUE(status.ok()) << status;
  return batch;
}

// Goal: a sequence is the same whoever reads it, in whatever portions; another
// seed, split, step or sequence is another one. Method: read whole, then apart.
TEST(RandomBatchesTest, DependsOnSeedStepAndSequenceAlone) {
  const RandomBatch whole = Read({});
  EXPECT_EQ(whole, Read({}));
  for (int64_t s = 0; s < kGlobalBatch; ++s) {
    const RandomBatch one = Read({.first = s, .count = 1});
    EXPECT_TRUE(std::equal(one.tokens.begin(), one.tokens.end(),
                           whole.tokens.begin() + s * kLength));
    EXPECT_TRUE(std::equal(one.targets.begin(), one.targets.end(),
                           whole.targets.begin() + s * kLength));
    if (s > 0) {
      EXPECT_NE(one.tokens, Read({.count = 1}).tokens);
    }
  }
  EXPECT_NE(whole.tokens, Read({.seed = 8}).tokens);
  EXPECT_NE(whole.tokens, Read({.step = 2}).tokens);
  EXPECT_NE(whole.tokens, Read({.split = DataSplit::kValidation}).tokens);
}

// Goal: tokens fit the vocabulary and use it evenly, targets are the tokens
// that follow, a sequence is one document. Method: count; with 2400 draws of 50
// a token comes 48 times, give or take six deviations of 6.9.
TEST(RandomBatchesTest, DrawsUniformTokensInOneDocument) {
  const RandomBatch batch = Read({});
  std::vector<int> counts(kRandomVocabSize, 0);
  for (size_t i = 0; i < batch.tokens.size(); ++i) {
    ASSERT_GE(batch.tokens[i], 0);
    ASSERT_LT(batch.tokens[i], kRandomVocabSize);
    ASSERT_GE(batch.targets[i], 0);
    ASSERT_LT(batch.targets[i], kRandomVocabSize);
    ++counts[batch.tokens[i]];
    EXPECT_EQ(batch.document_starts[i], 0);
    if ((i + 1) % kLength != 0) {
      EXPECT_EQ(batch.targets[i], batch.tokens[i + 1]);
    }
  }
  for (const int count : counts) EXPECT_NEAR(count, 48, 42);
}

TEST(RandomBatchesTest, RefusesSequencesBeyondTheBatch) {
  RandomBatches batches(
      {.vocab_size = kRandomVocabSize, .sequence_length = kLength, .seed = 1});
  RandomBatch batch(2);
  EXPECT_EQ(batches
                .Fill({DataSplit::kTraining, 1, kGlobalBatch, 5, 2},
                      {batch.tokens.data(), batch.targets.data(),
                       batch.document_starts.data()})
                .code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace millrace
