#include "worker/data/sample_batches.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/data/temporary_folder.h"
#include "worker/data/evaluation_batches.h"

namespace millrace {
namespace {

using testing::HasSubstr;

constexpr int64_t kSequence = 64;
constexpr int64_t kVocab = 1000;

struct TestSample {
  std::vector<int32_t> tokens;
  std::vector<uint8_t> trained;
};

// Samples of 2 to 80 tokens, whose second halves are trained.
std::vector<TestSample> RandomSamples(int num_samples) {
  std::mt19937_64 random(7);
  std::vector<TestSample> samples;
  for (int i = 0; i < num_samples; ++i) {
    TestSample& sample = samples.emplace_back();
    const size_t length = 2 + random() % 79;
    for (size_t t = 0; t < length; ++t) {
      sample.tokens.push_back(static_cast<int32_t>(random() % kVocab));
      sample.trained.push_back(t >= length / 2 ? 1 : 0);
    }
  }
  return samples;
}

std::string WriteSamples(const TemporaryFolder& folder,
                         const std::vector<TestSample>& samples,
                         const std::string& name = "samples") {
  const std::string prefix = folder.path() + "/" + name;
  auto writer = SampleWriter::Create(prefix, kVocab);
  EXPECT_TRUE(writer.ok()) << writer.status();
  for (const TestSample& sample : samples) {
    EXPECT_TRUE(writer->Add(sample.tokens, sample.trained).ok());
  }
  EXPECT_TRUE(writer->Finish().ok());
  return prefix;
}

// Goal: no sequence overflows, every sample is in one, they are nearly full,
// and equal inputs give equal sequences.
TEST(PackingTest, FillsSequences) {
  std::mt19937_64 random(3);
  for (const int num_samples : {0, 1, 2, 50, 3000}) {
    std::vector<int64_t> lengths;
    for (int i = 0; i < num_samples; ++i) {
      lengths.push_back(1 + static_cast<int64_t>(random() % 200 % 128));
    }
    const auto sequences = PackSamples(lengths, 128, 5);
    std::set<int64_t> seen;
    for (const PackedSequence& sequence : sequences) {
      int64_t length = 0;
      for (const int64_t sample : sequence.samples) {
        EXPECT_TRUE(seen.insert(sample).second);
        length += lengths[static_cast<size_t>(sample)];
      }
      EXPECT_EQ(length, sequence.length);
      EXPECT_LE(length, 128);
    }
    EXPECT_EQ(seen.size(), lengths.size());
    const auto again = PackSamples(lengths, 128, 5);
    ASSERT_EQ(again.size(), sequences.size());
    for (size_t i = 0; i < again.size(); ++i) {
      EXPECT_EQ(again[i].samples, sequences[i].samples);
    }
    if (num_samples == 3000) {
      const int64_t total =
          std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
      EXPECT_GT(static_cast<double>(total) /
                    static_cast<double>(sequences.size() * 128),
                0.99);
      EXPECT_NE(PackSamples(lengths, 128, 6)[0].samples, sequences[0].samples);
    }
  }
}

// Goal: an epoch trains each trained token once, with its own sample's tokens
// before it; padding trains nothing; the share is that of the targets.
TEST(SampleBatchesTest, AnEpochTrainsEachTokenOnce) {
  const TemporaryFolder folder;
  std::vector<TestSample> samples = RandomSamples(200);
  samples.push_back({{1, 2, 3}, {1, 1, 0}});  // Trains its second token.
  samples.push_back({{1, 2, 3}, {1, 0, 0}});  // The first is no target.
  const std::string prefix = WriteSamples(folder, samples);
  for (const bool packs : {true, false}) {
    auto batches = SampleBatches::Open({.prefixes = {prefix},
                                        .name = "a.jsonl",
                                        .vocab_size = kVocab,
                                        .sequence_length = kSequence,
                                        .packs = packs,
                                        .seed = 9});
    ASSERT_TRUE(batches.ok()) << batches.status();
    std::map<std::vector<int32_t>, int> expected;  // Inputs up to a target.
    for (const TestSample& sample : samples) {
      for (size_t t = 1; t < sample.tokens.size() && t <= kSequence; ++t) {
        if (sample.trained[t] == 0) continue;
        ++expected[std::vector<int32_t>(
            sample.tokens.begin(),
            sample.tokens.begin() + static_cast<std::ptrdiff_t>(t) + 1)];
      }
    }
    const int64_t num_rows = (*batches)->num_samples(DataSplit::kTraining);
    int64_t num_trained = 0;
    std::vector<int32_t> tokens(kSequence), targets(kSequence),
        starts(kSequence);
    for (int64_t row = 0; row < num_rows; ++row) {
      ASSERT_TRUE((*batches)
                      ->Fill({.split = DataSplit::kTraining,
                              .step = 1,
                              .global_batch = num_rows,
                              .first_sequence_idx = row,
                              .num_sequences = 1},
                             {tokens.data(), targets.data(), starts.data()})
                      .ok());
      for (int64_t t = 0; t < kSequence; ++t) {
        EXPECT_LE(starts[t], t);
        if (targets[t] < 0) continue;
        ++num_trained;
        std::vector<int32_t> seen(tokens.begin() + starts[t],
                                  tokens.begin() + t + 1);
        seen.push_back(targets[t]);
        EXPECT_GE(--expected[seen], 0);
      }
    }
    EXPECT_TRUE(std::all_of(expected.begin(), expected.end(),
                            [](const auto& e) { return e.second == 0; }));
    EXPECT_DOUBLE_EQ(
        *(*batches)->TrainedShare(DataSplit::kTraining, 1, num_rows),
        static_cast<double>(num_trained) /
            static_cast<double>(num_rows * kSequence));
    const SampleCounts& counts = (*batches)->counts();
    EXPECT_EQ(counts.num_trained_tokens, num_trained);
    EXPECT_EQ(counts.num_samples, 202);
    EXPECT_EQ(counts.num_used, 201);
    EXPECT_EQ(counts.num_untrained, 1);
    EXPECT_GT(counts.num_shortened, 0);
    if (packs) {
      // No two samples of more than half a sequence share one, so so many are
      // needed at least. Best fit takes at most 11/9 of the fewest, and one.
      const int64_t num_needed = std::count_if(
          samples.begin(), samples.end(), [](const TestSample& sample) {
            return sample.tokens.size() - 1 > kSequence / 2;
          });
      EXPECT_LE(num_rows, num_needed * 11 / 9 + 1) << DescribeSamples(counts);
    }
  }
}

// Goal: long samples are cut or left out, counted; several files are one.
TEST(SampleBatchesTest, CountsWhatItLeavesOut) {
  const TemporaryFolder folder;
  const TestSample longer{std::vector<int32_t>(100, 5),
                          std::vector<uint8_t>(100, 1)};
  const TestSample fits{std::vector<int32_t>(kSequence + 1, 6),
                        std::vector<uint8_t>(kSequence + 1, 1)};
  // Trained only behind the cut.
  TestSample late{std::vector<int32_t>(100, 7), std::vector<uint8_t>(100, 0)};
  late.trained.back() = 1;
  const std::string first = WriteSamples(folder, {longer, fits}, "first");
  const std::string second = WriteSamples(folder, {late}, "second");
  SampleBatchesOptions options = {.prefixes = {first, second},
                                  .name = "a.jsonl",
                                  .vocab_size = kVocab,
                                  .sequence_length = kSequence};
  auto cut = SampleBatches::Open(options);
  ASSERT_TRUE(cut.ok()) << cut.status();
  EXPECT_EQ((*cut)->counts().num_shortened, 2);
  EXPECT_EQ((*cut)->counts().num_untrained, 1);
  EXPECT_EQ((*cut)->counts().num_used, 2);
  EXPECT_EQ(DescribeSamples((*cut)->counts()),
            "2 samples in 2 sequences, 100.0 % filled, 100 % of tokens "
            "trained; 2 shortened to the sequence; 1 left out, without a "
            "trained token");
  options.drops_long_samples = true;
  auto dropped = SampleBatches::Open(options);
  ASSERT_TRUE(dropped.ok()) << dropped.status();
  EXPECT_EQ((*dropped)->counts().num_dropped_long, 2);
  EXPECT_EQ((*dropped)->counts().num_used, 1);
  options.prefixes = {second};
  options.drops_long_samples = false;
  EXPECT_THAT(std::string(SampleBatches::Open(options).status().message()),
              HasSubstr("0 trained tokens in 1 samples of a.jsonl"));
}

// Goal: sets for evaluation beside the samples leave their share of trained
// tokens as it is; a pass over a set is a mean over all tokens.
TEST(SampleBatchesTest, EvaluationKeepsTheShare) {
  const TemporaryFolder folder;
  auto batches = SampleBatches::Open(
      {.prefixes = {WriteSamples(folder, RandomSamples(50))},
       .name = "a.jsonl",
       .vocab_size = kVocab,
       .sequence_length = kSequence,
       .validation_fraction = 0.2});
  ASSERT_TRUE(batches.ok()) << batches.status();
  const double training = *(*batches)->TrainedShare(DataSplit::kTraining, 2, 4);
  const double validation =
      *(*batches)->TrainedShare(DataSplit::kValidation, 1, 4);
  EXPECT_LT(training, 1);
  JobSpec job;
  job.model.vocab_size = kVocab;
  job.model.sequence_length = kSequence;
  auto evaluation = EvaluationBatches::Open(job, *std::move(batches), {});
  ASSERT_TRUE(evaluation.ok()) << evaluation.status();
  const auto share = [&](DataSplit split, int64_t step) {
    return *(*evaluation)->TrainedShare(split, step, 4);
  };
  EXPECT_EQ(share(DataSplit::kTraining, 2), training);
  EXPECT_EQ(share(DataSplit::kValidation, 1), validation);
  const TokenSequence sequence = {.tokens = {1, 2, 3}, .num_context = 1};
  (*evaluation)->SelectSequence(sequence);
  EXPECT_EQ(share(DataSplit::kTraining, 2), training);
  EXPECT_EQ(share(DataSplit::kValidation, 1),
            static_cast<double>(sequence.num_scored()) / (4 * kSequence));
}

// Goal: held-out samples are the same for every seed, and never trained on.
TEST(SampleBatchesTest, HoldsOutSamples) {
  const TemporaryFolder folder;
  const std::string prefix = WriteSamples(folder, RandomSamples(100));
  std::set<std::vector<int32_t>> held_out;
  for (const uint64_t seed : {1, 2}) {
    auto batches = SampleBatches::Open({.prefixes = {prefix},
                                        .name = "a.jsonl",
                                        .vocab_size = kVocab,
                                        .sequence_length = kSequence,
                                        .packs = false,
                                        .validation_fraction = 0.1,
                                        .seed = seed});
    ASSERT_TRUE(batches.ok()) << batches.status();
    EXPECT_EQ((*batches)->num_samples(DataSplit::kValidation), 10);
    std::set<std::vector<int32_t>> rows[2];
    for (const DataSplit split :
         {DataSplit::kTraining, DataSplit::kValidation}) {
      const int64_t num_rows = (*batches)->num_samples(split);
      std::vector<int32_t> tokens(kSequence * num_rows);
      std::vector<int32_t> targets(tokens), starts(tokens);
      ASSERT_TRUE((*batches)
                      ->Fill({.split = split,
                              .step = 1,
                              .global_batch = num_rows,
                              .first_sequence_idx = 0,
                              .num_sequences = num_rows},
                             {tokens.data(), targets.data(), starts.data()})
                      .ok());
      for (int64_t row = 0; row < num_rows; ++row) {
        rows[split == DataSplit::kValidation].insert(
            std::vector<int32_t>(tokens.begin() + row * kSequence,
                                 tokens.begin() + (row + 1) * kSequence));
      }
    }
    for (const auto& row : rows[1]) EXPECT_FALSE(rows[0].contains(row));
    if (seed == 1) held_out = rows[1];
    EXPECT_EQ(rows[1], held_out);
  }
}

}  // namespace
}  // namespace millrace
