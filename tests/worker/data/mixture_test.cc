#include "worker/data/mixture.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/data/temporary_folder.h"
#include "worker/data/indexed_dataset.h"
#include "worker/data/mixed_batches.h"
#include "worker/data/open_batches.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

// Goal: each source's samples come in order without a gap, its cursor says how
// many came before, and its share is its weight at any time. Method: count,
// from the first samples and from beyond 2^32, where the sequence repeats.
TEST(MixtureTest, GivesEachSourceItsShareInOrder) {
  const std::vector<std::vector<double>> all_weights = {
      {1},        {1, 1},
      {0.7, 0.3}, {5, 1e-3, 2, 3},
      {1e6, 1},   {1, 2, 3, 4, 5, 6, 7}};
  for (const std::vector<double>& weights : all_weights) {
    double sum = 0;
    for (const double weight : weights) sum += weight;
    for (const uint64_t key : {uint64_t{0}, ~uint64_t{0}, uint64_t{12345}}) {
      const auto mixture = Mixture::Make(weights, key);
      ASSERT_TRUE(mixture.ok()) << mixture.status();
      for (const int64_t begin :
           {int64_t{0}, (int64_t{1} << 32) - 500, int64_t{9} << 40}) {
        std::vector<int64_t> cursors;
        int64_t total = 0;
        for (size_t i = 0; i < weights.size(); ++i) {
          cursors.push_back(mixture->NumBefore(i, begin));
          total += cursors.back();
        }
        ASSERT_EQ(total, begin);
        const std::vector<int64_t> first = cursors;
        for (int64_t n = begin; n < begin + 5000; ++n) {
          const Mixture::Pick pick = mixture->At(n);
          ASSERT_LT(pick.source_idx, weights.size());
          ASSERT_EQ(pick.number, cursors[pick.source_idx]++) << n;
          for (size_t i = 0; i < weights.size(); ++i) {
            const double share =
                weights[i] / sum * static_cast<double>(n + 1 - begin);
            ASSERT_LT(
                std::abs(static_cast<double>(cursors[i] - first[i]) - share), 5)
                << "source " << i << " after " << n + 1 - begin;
          }
        }
      }
    }
  }
}

TEST(MixtureTest, RefusesAWeightThatIsNeverDrawn) {
  EXPECT_THAT(
      std::string(Mixture::Make({1, 1e-12}, 0).status().message()),
      AllOf(HasSubstr("data.sources[1].weight"), HasSubstr("too little")));
}

// A source of samples whose tokens are its number and theirs.
class NumberedSamples : public SampleSource {
 public:
  explicit NumberedSamples(int32_t source) : source_(source) {}
  int64_t num_samples(DataSplit) const override { return 10; }
  absl::Status ReadSample(DataSplit split, int64_t number,
                          const BatchPointers& out) override {
    out.tokens[0] = source_;
    out.tokens[1] = static_cast<int32_t>(number);
    out.targets[0] = split == DataSplit::kTraining ? 0 : 1;
    out.targets[1] = 0;
    out.document_starts[0] = out.document_starts[1] = 0;
    return absl::OkStatus();
  }
  absl::StatusOr<int64_t> NumTrained(DataSplit, int64_t) const override {
    return 2;
  }

 private:
  const int32_t source_;
};

constexpr int64_t kMixedLength = 2;

MixedBatches MakeBatches(uint64_t seed) {
  std::vector<MixedSource> sources;
  for (int32_t i = 0; i < 3; ++i) {
    sources.push_back({"s", std::make_unique<NumberedSamples>(i)});
  }
  const std::vector<double> weights = {3, 2, 1};
  return MixedBatches(std::move(sources), *Mixture::Make(weights, seed),
                      *Mixture::Make(weights, 0), kMixedLength);
}

std::vector<int32_t> Step(MixedBatches* batches, DataSplit split, int64_t step,
                          int64_t micro_batch) {
  constexpr int64_t kGlobalBatch = 12;
  std::vector<int32_t> tokens(kGlobalBatch * kMixedLength);
  std::vector<int32_t> targets(tokens.size());
  std::vector<int32_t> starts(tokens.size());
  for (int64_t i = 0; i < kGlobalBatch; i += micro_batch) {
    const auto at = static_cast<size_t>(i * kMixedLength);
    EXPECT_TRUE(batches
                    ->Fill({.split = split,
                            .step = step,
                            .global_batch = kGlobalBatch,
                            .first_sequence_idx = i,
                            .num_sequences = micro_batch},
                           {tokens.data() + at, targets.data() + at,
                            starts.data() + at})
                    .ok());
  }
  return tokens;
}

// Goal: a step's samples follow from seed and step alone. Method: ask for steps
// in another order, by another object, in other micro-batches.
TEST(MixedBatchesTest, FollowsFromSeedAndStep) {
  MixedBatches batches = MakeBatches(7);
  MixedBatches other = MakeBatches(7);
  for (const int64_t step : {5, 1, 900, 2}) {
    const auto whole = Step(&batches, DataSplit::kTraining, step, 12);
    for (const int64_t micro_batch : {1, 2, 3, 4, 6}) {
      EXPECT_EQ(Step(&other, DataSplit::kTraining, step, micro_batch), whole);
    }
  }
  MixedBatches reseeded = MakeBatches(8 * uint64_t{0x9E3779B97F4A7C15});
  EXPECT_NE(Step(&reseeded, DataSplit::kTraining, 1, 12),
            Step(&batches, DataSplit::kTraining, 1, 12));
  EXPECT_EQ(Step(&reseeded, DataSplit::kValidation, 1, 12),
            Step(&batches, DataSplit::kValidation, 1, 12));
}

// Two sources of indexed tokens, the second ten times the first.
JobSpec MixedJob(const TemporaryFolder& folder) {
  for (const int num_tokens : {101, 1001}) {
    auto writer = IndexedDatasetWriter::Create(
        folder / std::to_string(num_tokens), TokenType::kInt32);
    EXPECT_TRUE(writer.ok());
    std::vector<int32_t> tokens(static_cast<size_t>(num_tokens));
    for (size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = static_cast<int32_t>(i) + (num_tokens == 101 ? 5000 : 0);
    }
    EXPECT_TRUE(writer->AddDocument(tokens).ok());
    EXPECT_TRUE(writer->Finish().ok());
  }
  JobSpec job;
  job.model.vocab_size = 10000;
  job.model.sequence_length = 10;
  job.data.sources = {{.files = {folder / "101.bin"}, .weight = 1},
                      {.files = {folder / "1001.bin"}, .weight = 3}};
  job.data.validation_fraction = 0;
  job.training.num_steps = 20;
  job.training.global_batch = 4;
  return job;
}

// Goal: the plan's epochs are those that the steps make, and a source that is
// read several times comes whole in each epoch. Method: read all steps and
// count which samples came how often.
TEST(OpenBatchesTest, MixesSourcesAsPlanned) {
  TemporaryFolder folder;
  const JobSpec job = MixedJob(folder);
  const auto data = PrepareData({.data = job.data, .vocab_size = 10000});
  ASSERT_TRUE(data.ok()) << data.status();
  const auto table = DescribeEpochs(job, *data);
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_THAT(*table,
              AllOf(HasSubstr("25.0 %"), HasSubstr("75.0 %"),
                    HasSubstr("      2.1\n"), HasSubstr("     0.59\n")));
  const auto batches = OpenBatches(job, PrefixesBySource(*data));
  ASSERT_TRUE(batches.ok()) << batches.status();
  std::vector<int> times(10);
  int others = 0;
  for (int64_t step = 1; step <= job.training.num_steps; ++step) {
    std::vector<int32_t> tokens(40);
    std::vector<int32_t> targets(40);
    std::vector<int32_t> starts(40);
    ASSERT_TRUE((*batches)
                    ->Fill({.split = DataSplit::kTraining,
                            .step = step,
                            .global_batch = 4,
                            .first_sequence_idx = 0,
                            .num_sequences = 4},
                           {tokens.data(), targets.data(), starts.data()})
                    .ok());
    for (size_t i = 0; i < 40; i += 10) {
      if (tokens[i] >= 5000) {
        ++times[static_cast<size_t>(tokens[i] - 5000) / 10];
      } else {
        ++others;
      }
    }
  }
  // 21 samples of ten: two whole epochs, and the first of the third.
  int total = 0;
  for (const int count : times) {
    EXPECT_THAT(count, AnyOf(2, 3));
    total += count;
  }
  EXPECT_EQ(total, 21);
  EXPECT_EQ(others, 59);
}

// Goal: a source too short for one sample is named.
TEST(OpenBatchesTest, NamesASourceThatIsTooShort) {
  TemporaryFolder folder;
  JobSpec job = MixedJob(folder);
  job.model.sequence_length = 200;
  EXPECT_THAT(std::string(PrepareAndOpenBatches(job, 1).status().message()),
              HasSubstr("data.sources[0]: the data has 101 tokens"));
}

TEST(OpenBatchesTest, PassesPrefixesAsArguments) {
  const std::vector<std::vector<std::string>> prefixes = {
      {"/a:b", "c"}, {"d"}, {"e", "f"}};
  const auto back = PrefixesFromArguments(PrefixesToArguments(prefixes));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, prefixes);
  for (const char* wrong : {"a", "1:a", "x:a"}) {
    EXPECT_FALSE(PrefixesFromArguments({wrong}).ok()) << wrong;
  }
}

}  // namespace
}  // namespace millrace
