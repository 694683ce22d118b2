#include "worker/data/dataset.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <new>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/data/temporary_folder.h"

// Counts every allocation of this program, for AllocatesNothing below. Not
// inlined: the compiler would take free() for a mismatch with operator new.
namespace {
int64_t num_allocations = 0;
}  // namespace
[[gnu::noinline]] void* operator new(size_t size) {
  ++num_allocations;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}

namespace millrace {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kSequence = 8;
constexpr int64_t kVocabSize = 30000;

// Writes documents of the given lengths; the token at position p has id p, so a
// sample tells where it came from. Continues at `*next_id`.
std::string WriteDocuments(const TemporaryFolder& folder,
                           const std::string& name,
                           const std::vector<int>& lengths, int32_t* next_id) {
  auto writer = IndexedDatasetWriter::Create(folder / name, TokenType::kUint16);
  EXPECT_TRUE(writer.ok()) << writer.status();
  for (const int length : lengths) {
    std::vector<int32_t> tokens;
    for (int i = 0; i < length; ++i) tokens.push_back((*next_id)++);
    EXPECT_TRUE(writer->AddDocument(tokens).ok());
  }
  EXPECT_TRUE(writer->Finish().ok());
  return folder / name;
}

std::unique_ptr<PackedDataset> OpenDataset(const DatasetOptions& options) {
  auto dataset = PackedDataset::Open(options);
  EXPECT_TRUE(dataset.ok()) << dataset.status();
  return *std::move(dataset);
}

struct Batch {
  explicit Batch(int64_t num_sequences)
      : tokens(static_cast<size_t>(num_sequences * kSequence), -1),
        targets(tokens),
        document_starts(tokens) {}
  BatchPointers pointers() {
    return {tokens.data(), targets.data(), document_starts.data()};
  }
  std::vector<int32_t> tokens, targets, document_starts;
};

Batch FillOrDie(PackedDataset& dataset, const BatchRequest& request) {
  Batch batch(request.num_sequences);
  const absl::Status status = dataset.Fill(request, batch.pointers());
  EXPECT_TRUE(status.ok()) << status;
  return batch;
}

// Goal: the shuffle is a permutation of every size. Method: all sizes to 300
// and some around powers of two and four.
TEST(PermutedIndexTest, IsAPermutation) {
  std::vector<int64_t> sizes;
  for (int64_t size = 1; size <= 300; ++size) sizes.push_back(size);
  for (const int64_t size : {1023, 1024, 1025, 4096, 4097, 65537}) {
    sizes.push_back(size);
  }
  for (const int64_t size : sizes) {
    std::vector<bool> seen(static_cast<size_t>(size));
    for (int64_t position = 0; position < size; ++position) {
      const int64_t image = PermutedIndex(17, size, position);
      ASSERT_GE(image, 0);
      ASSERT_LT(image, size);
      ASSERT_FALSE(seen[static_cast<size_t>(image)]) << size;
      seen[static_cast<size_t>(image)] = true;
    }
  }
}

// Goal: the order looks random: neighbours go far apart, and other keys give
// other orders. Method: the mean distance of neighbours is size / 3 for a
// random order; its standard error here is below one percent.
TEST(PermutedIndexTest, Shuffles) {
  constexpr int64_t kSize = 10000;
  double distance = 0;
  int64_t num_equal = 0;
  for (int64_t i = 0; i + 1 < kSize; ++i) {
    distance += std::abs(static_cast<double>(PermutedIndex(5, kSize, i + 1) -
                                             PermutedIndex(5, kSize, i)));
    num_equal += PermutedIndex(5, kSize, i) == PermutedIndex(6, kSize, i);
  }
  EXPECT_NEAR(distance / kSize, kSize / 3.0, 0.05 * kSize / 3.0);
  EXPECT_LT(num_equal, 20);  // One is expected.
}

// Goal: each epoch uses every training sample exactly once, in another order,
// and none of validation. Method: two epochs, batches that do not divide them.
TEST(PackedDatasetTest, EachSampleOnceAnEpoch) {
  TemporaryFolder folder;
  int32_t next_id = 0;
  DatasetOptions options{
      .prefixes = {WriteDocuments(folder, "d", {100, 3, 250, 60}, &next_id)},
      .vocab_size = kVocabSize,
      .sequence_length = kSequence,
      .validation_fraction = 0.1,
      .seed = 3};
  const auto dataset = OpenDataset(options);
  // 412 inputs with a target: 51 samples, 5 of them for validation.
  ASSERT_EQ(dataset->num_samples(DataSplit::kTraining), 46);
  ASSERT_EQ(dataset->num_samples(DataSplit::kValidation), 5);

  constexpr int64_t kGlobalBatch = 4;
  std::vector<int32_t> firsts;
  for (int64_t step = 1; step <= 23; ++step) {  // 92 samples: two epochs.
    const Batch batch = FillOrDie(
        *dataset, {DataSplit::kTraining, step, kGlobalBatch, 0, kGlobalBatch});
    for (int64_t i = 0; i < kGlobalBatch; ++i) {
      const auto* tokens = batch.tokens.data() + i * kSequence;
      const auto* targets = batch.targets.data() + i * kSequence;
      firsts.push_back(tokens[0]);
      for (int64_t t = 0; t < kSequence; ++t) {
        ASSERT_EQ(tokens[t], tokens[0] + t);
        ASSERT_EQ(targets[t], tokens[t] + 1);
      }
    }
  }
  const std::vector<int32_t> first_epoch(firsts.begin(), firsts.begin() + 46);
  const std::vector<int32_t> second_epoch(firsts.begin() + 46, firsts.end());
  EXPECT_NE(first_epoch, second_epoch);
  const std::set<int32_t> used(first_epoch.begin(), first_epoch.end());
  EXPECT_EQ(used.size(), 46u);
  EXPECT_EQ(std::set<int32_t>(second_epoch.begin(), second_epoch.end()), used);

  // Validation: the other five, in the same order around again.
  std::vector<int32_t> held_out;
  for (int64_t step = 1; step <= 5; ++step) {
    const Batch batch =
        FillOrDie(*dataset, {DataSplit::kValidation, step, 2, 0, 2});
    held_out.push_back(batch.tokens[0]);
    held_out.push_back(batch.tokens[kSequence]);
  }
  std::set<int32_t> all = used;
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(held_out[i], held_out[i + 5]);
    EXPECT_TRUE(all.insert(held_out[i]).second) << held_out[i];
  }
  EXPECT_EQ(all.size(), 51u);
  EXPECT_EQ(*all.begin(), 0);
  EXPECT_EQ(*all.rbegin(), 50 * kSequence);

  // Another seed, another order.
  options.seed = 4;
  const auto other = OpenDataset(options);
  int num_equal = 0;
  for (int64_t i = 0; i < 46; ++i) {
    num_equal += other->SampleIndex(DataSplit::kTraining, i) * kSequence ==
                 first_epoch[static_cast<size_t>(i)];
  }
  for (int64_t i = 0; i < 5; ++i) {
    EXPECT_EQ(other->SampleIndex(DataSplit::kValidation, i) * kSequence,
              held_out[static_cast<size_t>(i)])
        << "the same samples are held out for every seed";
  }
  EXPECT_LT(num_equal, 10);
}

// Goal: the sequences of a step do not depend on the layout. Method: ask for
// the same step in every way of cutting it, from datasets opened anew, as
// workers of other layouts or after a restart would.
TEST(PackedDatasetTest, EveryLayoutSeesTheSameSequences) {
  TemporaryFolder folder;
  int32_t next_id = 0;
  const DatasetOptions options{
      .prefixes = {WriteDocuments(folder, "a", {37, 200}, &next_id),
                   WriteDocuments(folder, "b", {1, 1, 90}, &next_id)},
      .vocab_size = kVocabSize,
      .sequence_length = kSequence,
      .seed = 9};
  constexpr int64_t kGlobalBatch = 12;
  for (const int64_t step : {1, 2, 7}) {
    const Batch whole =
        FillOrDie(*OpenDataset(options),
                  {DataSplit::kTraining, step, kGlobalBatch, 0, kGlobalBatch});
    for (const int64_t data : {1, 2, 3, 4}) {
      for (const int64_t micro_batch : {1, 3}) {
        if (kGlobalBatch % (data * micro_batch) != 0) continue;
        const int64_t num_microbatches = kGlobalBatch / data / micro_batch;
        const auto dataset = OpenDataset(options);
        Batch parts(0);
        for (int64_t d = 0; d < data; ++d) {
          for (int64_t m = 0; m < num_microbatches; ++m) {
            const Batch part =
                FillOrDie(*dataset, {DataSplit::kTraining, step, kGlobalBatch,
                                     (d * num_microbatches + m) * micro_batch,
                                     micro_batch});
            const auto append = [](const std::vector<int32_t>& from,
                                   std::vector<int32_t>* to) {
              to->insert(to->end(), from.begin(), from.end());
            };
            append(part.tokens, &parts.tokens);
            append(part.targets, &parts.targets);
            append(part.document_starts, &parts.document_starts);
          }
        }
        EXPECT_EQ(parts.tokens, whole.tokens);
        EXPECT_EQ(parts.targets, whole.targets);
        EXPECT_EQ(parts.document_starts, whole.document_starts);
      }
    }
  }
}

// Goal: document_starts is right everywhere, across files and empty documents
// too. Method: compare with a scan over the borders, sample by sample.
TEST(PackedDatasetTest, DocumentStarts) {
  TemporaryFolder folder;
  const std::vector<std::vector<int>> lengths = {
      {3, 0, 1, 11, 8}, {}, {1, 30, 0, 2, 24}};
  DatasetOptions options{.vocab_size = kVocabSize,
                         .sequence_length = kSequence};
  int32_t next_id = 0;
  std::set<int32_t> borders;  // Ids of first tokens; id = position.
  for (size_t i = 0; i < lengths.size(); ++i) {
    int32_t at = next_id;
    for (const int length : lengths[i]) {
      borders.insert(at);
      at += length;
    }
    options.prefixes.push_back(
        WriteDocuments(folder, std::string(1, static_cast<char>('a' + i)),
                       lengths[i], &next_id));
  }
  const auto dataset = OpenDataset(options);
  ASSERT_EQ(dataset->num_tokens(), 80);
  const int64_t num_samples = dataset->num_samples(DataSplit::kTraining);
  ASSERT_EQ(num_samples, 9);
  const Batch batch = FillOrDie(
      *dataset, {DataSplit::kTraining, 1, num_samples, 0, num_samples});
  for (int64_t i = 0; i < num_samples; ++i) {
    const int32_t position = batch.tokens[static_cast<size_t>(i * kSequence)];
    int32_t expected = 0;
    for (int32_t t = 0; t < kSequence; ++t) {
      if (borders.contains(position + t)) expected = t;
      EXPECT_EQ(batch.document_starts[static_cast<size_t>(i * kSequence + t)],
                expected)
          << "position " << position + t;
    }
  }
}

TEST(PackedDatasetTest, RefusesTooLittleData) {
  TemporaryFolder folder;
  int32_t next_id = 0;
  DatasetOptions options{
      .prefixes = {WriteDocuments(folder, "d", {5, 3}, &next_id)},
      .vocab_size = kVocabSize,
      .sequence_length = kSequence};
  EXPECT_THAT(std::string(PackedDataset::Open(options).status().message()),
              HasSubstr("has 8 tokens, but 1 sample of model.sequence_length 8 "
                        "need 9"));
  next_id = 0;
  options.prefixes = {WriteDocuments(folder, "e", {9}, &next_id)};
  EXPECT_TRUE(PackedDataset::Open(options).ok());
  options.validation_fraction = 0.5;
  EXPECT_THAT(std::string(PackedDataset::Open(options).status().message()),
              HasSubstr("need 17"));
  options.validation_fraction = 1;
  EXPECT_EQ(PackedDataset::Open(options).status().code(),
            absl::StatusCode::kInvalidArgument);
  options.prefixes.clear();
  EXPECT_FALSE(PackedDataset::Open(options).ok());
}

TEST(PackedDatasetTest, ReportsIdsBeyondTheVocabulary) {
  TemporaryFolder folder;
  int32_t next_id = 0;
  const auto dataset =
      OpenDataset({.prefixes = {WriteDocuments(folder, "d", {20}, &next_id)},
                   .vocab_size = 12,
                   .sequence_length = kSequence});
  Batch batch(2);
  const absl::Status status =
      dataset->Fill({DataSplit::kTraining, 1, 2, 0, 2}, batch.pointers());
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("d.bin: token 12 has id 12, outside [0, 12)"));
}

// Goal: samples with ids outside the vocabulary are left out, each in favour of
// the next whole one, as many as are allowed; with none whole that is said.
// Method: two samples, of which the second is broken, then both.
TEST(PackedDatasetTest, LeavesOutBrokenSamples) {
  TemporaryFolder folder;
  int32_t next_id = 0;
  DatasetOptions options = {
      .prefixes = {WriteDocuments(folder, "d", {2 * kSequence + 1}, &next_id)},
      .vocab_size = kSequence + 1,
      .sequence_length = kSequence,
      .max_broken = 1};
  const auto dataset = OpenDataset(options);
  ASSERT_EQ(dataset->num_samples(DataSplit::kTraining), 2);
  Batch batch(2);
  ASSERT_TRUE(
      dataset->Fill({DataSplit::kTraining, 1, 2, 0, 2}, batch.pointers()).ok());
  const int32_t* tokens = batch.pointers().tokens;
  EXPECT_EQ(std::vector<int32_t>(tokens, tokens + kSequence),
            std::vector<int32_t>(tokens + kSequence, tokens + 2 * kSequence));
  EXPECT_EQ(tokens[0], 0);
  options.vocab_size = 1;
  options.max_broken = 10;
  EXPECT_TRUE(absl::IsInvalidArgument(OpenDataset(options)->Fill(
      {DataSplit::kTraining, 1, 2, 0, 2}, batch.pointers())));
}

TEST(PackedDatasetTest, RefusesValidationWithoutASplit) {
  TemporaryFolder folder;
  int32_t next_id = 0;
  const auto dataset =
      OpenDataset({.prefixes = {WriteDocuments(folder, "d", {20}, &next_id)},
                   .vocab_size = kVocabSize,
                   .sequence_length = kSequence});
  Batch batch(1);
  EXPECT_FALSE(
      dataset->Fill({DataSplit::kValidation, 1, 1, 0, 1}, batch.pointers())
          .ok());
}

// Goal: a step allocates nothing. Method: count calls of operator new.
TEST(PackedDatasetTest, AllocatesNothing) {
  TemporaryFolder folder;
  int32_t next_id = 0;
  const auto dataset = OpenDataset(
      {.prefixes = {WriteDocuments(folder, "d", {5, 400, 60}, &next_id)},
       .vocab_size = kVocabSize,
       .sequence_length = kSequence});
  Batch batch(4);
  const int64_t before = num_allocations;
  bool ok = true;
  for (int64_t step = 1; step <= 100; ++step) {
    ok &= dataset->Fill({DataSplit::kTraining, step, 4, 0, 4}, batch.pointers())
              .ok();
  }
  EXPECT_EQ(num_allocations, before);
  EXPECT_TRUE(ok);
}

}  // namespace
}  // namespace millrace
