#include "worker/data/prepare.h"

#include <unistd.h>

#include <filesystem>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/data/sample_text.h"
#include "tests/worker/data/temporary_folder.h"
#include "worker/data/indexed_dataset.h"
#include "worker/data/tokenizer.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kPreparedVocabSize = 500;

PrepareOptions Options(const TemporaryFolder& folder) {
  PrepareOptions options;
  options.data.text = {folder / "text/**"};
  options.data.cache_directory = folder / "cache";
  options.vocab_size = kPreparedVocabSize;
  options.num_threads = 2;
  return options;
}

// Three files of text and one that is none.
void WriteText(const TemporaryFolder& folder) {
  for (int i = 0; i < 3; ++i) {
    folder.Write("text/f" + std::to_string(i) + ".txt",
                 SampleLines(static_cast<uint64_t>(i), 400));
  }
  folder.Write("text/image", std::string("\x89PNG\0\0", 6));
}

// Goal: every file becomes one document that decodes to its text, in the order
// of the paths, whatever the number of threads.
TEST(PrepareTest, EncodesEveryFile) {
  TemporaryFolder folder;
  WriteText(folder);
  std::set<PrepareStage> stages;
  PrepareOptions options = Options(folder);
  options.progress = [&](const PrepareProgress& progress) {
    stages.insert(progress.stage);
    EXPECT_LE(progress.done_bytes, progress.total_bytes);
  };
  const auto data = PrepareData(options);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->num_documents, 3);
  EXPECT_EQ(data->skips.binary, 1);
  EXPECT_FALSE(data->from_cache);
  EXPECT_TRUE(stages.contains(PrepareStage::kTrainingTokenizer));

  const auto dataset = IndexedDataset::Open(data->sources.at(0).prefixes.at(0));
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  const auto tokenizer = Tokenizer::FromModel(*ReadFile(data->tokenizer_path),
                                              "trained", kPreparedVocabSize);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  for (int64_t i = 0; i < 3; ++i) {
    const int64_t begin = dataset->DocumentBegin(i);
    std::vector<int32_t> tokens(
        static_cast<size_t>(dataset->DocumentBegin(i + 1) - begin));
    ASSERT_TRUE(dataset
                    ->Read(begin, static_cast<int64_t>(tokens.size()),
                           kPreparedVocabSize, tokens.data())
                    .ok());
    EXPECT_EQ(tokens.back(), (*tokenizer)->end_of_document());
    tokens.pop_back();
    EXPECT_EQ(*(*tokenizer)->Decode(tokens),
              SampleLines(static_cast<uint64_t>(i), 400));
  }

  options.num_threads = 1;
  options.data.cache_directory = folder / "other";
  const auto again = PrepareData(options);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->fingerprint, data->fingerprint);
}

// Goal: the second time is instant, and anything that matters is noticed.
// Method: change one thing at a time.
TEST(PrepareTest, CachesByAllThatMatters) {
  TemporaryFolder folder;
  WriteText(folder);
  PrepareOptions options = Options(folder);
  const auto first = PrepareData(options);
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = PrepareData(options);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_TRUE(second->from_cache);
  EXPECT_EQ(PrefixesBySource(*second), PrefixesBySource(*first));
  EXPECT_EQ(second->fingerprint, first->fingerprint);
  EXPECT_EQ(second->num_tokens, first->num_tokens);
  EXPECT_EQ(second->skips.binary, 1);

  const auto expect_new = [&](const PrepareOptions& changed) {
    const auto data = PrepareData(changed);
    ASSERT_TRUE(data.ok()) << data.status();
    EXPECT_FALSE(data->from_cache);
    EXPECT_NE(PrefixesBySource(*data), PrefixesBySource(*first));
  };
  options.vocab_size = kPreparedVocabSize - 1;
  expect_new(options);
  options = Options(folder);
  options.data.max_bytes = 10000;
  expect_new(options);
  options = Options(folder);
  options.data.end_of_document = "<s>";
  expect_new(options);
  // The path of a tokenizer does not matter, its content does.
  options = Options(folder);
  options.data.tokenizer = first->tokenizer_path;
  EXPECT_TRUE(PrepareData(options)->from_cache);
  options = Options(folder);
  folder.Write("text/f1.txt", SampleLines(7, 400));
  expect_new(options);
}

// Goal: a cache that a crash or a full disk has damaged is made anew.
TEST(PrepareTest, RepairsADamagedCache) {
  TemporaryFolder folder;
  WriteText(folder);
  const PrepareOptions options = Options(folder);
  const auto first = PrepareData(options);
  ASSERT_TRUE(first.ok()) << first.status();
  const std::string bin = first->sources.at(0).prefixes.at(0) + ".bin";
  std::filesystem::resize_file(bin, 10);
  const auto second = PrepareData(options);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_FALSE(second->from_cache);
  EXPECT_EQ(second->fingerprint, first->fingerprint);
  EXPECT_EQ(PrefixesBySource(*second), PrefixesBySource(*first));
}

// Goal: of several at once, one does the work. Method: threads stand for
// processes; flock tells open files apart, not processes.
TEST(PrepareTest, SeveralAtOnceShareTheWork) {
  TemporaryFolder folder;
  WriteText(folder);
  std::vector<absl::StatusOr<PreparedData>> results(
      3, absl::UnknownError("not run"));
  std::vector<std::thread> threads;
  for (auto& result : results) {
    threads.emplace_back(
        [&result, &folder] { result = PrepareData(Options(folder)); });
  }
  for (std::thread& thread : threads) thread.join();
  int64_t num_shards_made = 0;
  for (const auto& result : results) {
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->fingerprint, results[0]->fingerprint);
    num_shards_made += result->num_shards_made;
  }
  EXPECT_EQ(num_shards_made, 1);
}

TEST(PrepareTest, TakesIndexedDataAsItIs) {
  TemporaryFolder folder;
  auto writer = IndexedDatasetWriter::Create(folder / "d", TokenType::kInt32);
  ASSERT_TRUE(writer.ok());
  const std::vector<int32_t> tokens = {1, 2, 3};
  ASSERT_TRUE(writer->AddDocument(tokens).ok());
  ASSERT_TRUE(writer->Finish().ok());
  PrepareOptions options;
  options.vocab_size = 4;
  options.data.indexed = {folder / "d.bin", folder / "d"};
  const auto data = PrepareData(options);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->sources.at(0).prefixes,
            (std::vector<std::string>{folder / "d", folder / "d"}));
  EXPECT_EQ(data->num_tokens, 6);
  EXPECT_EQ(data->num_documents, 2);
  EXPECT_TRUE(data->tokenizer_path.empty());
}

TEST(PrepareTest, RefusesWhatCannotWork) {
  TemporaryFolder folder;
  PrepareOptions options = Options(folder);
  const auto message_of = [](const PrepareOptions& changed) {
    return std::string(PrepareData(changed).status().message());
  };
  EXPECT_THAT(message_of(options), HasSubstr("no file matches"));
  options.data.indexed = {"x"};
  EXPECT_THAT(message_of(options),
              HasSubstr("more than one of data.text, data.indexed"));
  options.data.text.clear();
  EXPECT_THAT(message_of(options), HasSubstr("x.idx"));
  options.data.indexed.clear();
  EXPECT_THAT(message_of(options), HasSubstr("none of data.text"));

  folder.Write("text/a", std::string("\0", 1));
  folder.Write("text/b", "\xFF");
  options = Options(folder);
  EXPECT_THAT(message_of(options),
              HasSubstr("2 files matched, none of them usable text"));
  folder.Write("text/c", "too little text");
  EXPECT_THAT(message_of(options), HasSubstr("lower model.vocab_size to"));
  options.data.tokenizer = folder / "absent.model";
  EXPECT_THAT(message_of(options), HasSubstr("absent.model"));
  options.data.tokenizer = folder / "text/c";
  EXPECT_THAT(message_of(options), HasSubstr("not a SentencePiece model"));
}

// Goal: data can be prepared with a tokenizer.json, in parallel; the cache
// keeps it and knows two end tokens apart.
TEST(PrepareTest, EncodesWithTokenizerJson) {
  TemporaryFolder folder;
  WriteText(folder);
  PrepareOptions options = Options(folder);
  options.vocab_size = 1000;
  options.data.tokenizer = "tests/data/tokenizers/llama3.json";
  EXPECT_THAT(std::string(PrepareData(options).status().message()),
              HasSubstr("data.end_of_document"));
  options.data.end_of_document = "<|end_of_text|>";
  const auto data = PrepareData(options);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_THAT(data->tokenizer_path, HasSubstr("/tokenizer.json"));
  const auto dataset = IndexedDataset::Open(data->sources.at(0).prefixes.at(0));
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  const auto tokenizer =
      Tokenizer::FromFiles({.name = "kept",
                            .content = *ReadFile(data->tokenizer_path),
                            .end_of_document = "<|end_of_text|>"},
                           1000);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  std::vector<int32_t> expected;
  for (uint64_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(
        (*tokenizer)->EncodeDocument(SampleLines(i, 400), &expected).ok());
  }
  std::vector<int32_t> tokens(static_cast<size_t>(dataset->num_tokens()));
  ASSERT_TRUE(
      dataset->Read(0, dataset->num_tokens(), 1000, tokens.data()).ok());
  EXPECT_EQ(tokens, expected);
  EXPECT_TRUE(PrepareData(options)->from_cache);
  options.data.end_of_document = "<|begin_of_text|>";
  EXPECT_FALSE(PrepareData(options)->from_cache);
}

}  // namespace
}  // namespace millrace
