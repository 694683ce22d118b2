// Conversion of records to token files: sources of several formats, sharing,
// restarts, and what is wrong with data.

#include <filesystem>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/data/temporary_folder.h"
#include "worker/data/indexed_dataset.h"
#include "worker/data/prepare.h"
#include "worker/data/tokenizer.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kConvertTokenizer[] = "tests/data/tokenizers/llama3.json";
constexpr int64_t kConvertVocabSize = 1000;

std::string LineOf(int i) {
  return absl::StrCat("{\"id\": ", i, ", \"text\": \"Line ", i,
                      " of the mill.\"}\n");
}

// 300 records in two files, in shards of a kilobyte.
PrepareOptions LinesOptions(const TemporaryFolder& folder) {
  std::string first;
  std::string second;
  for (int i = 0; i < 200; ++i) first += LineOf(i);
  for (int i = 200; i < 300; ++i) second += LineOf(i);
  folder.Write("lines/a.jsonl", first);
  folder.Write("lines/b.jsonl", second);
  PrepareOptions options;
  options.data.sources = {{.files = {folder / "lines/*.jsonl"}}};
  options.data.tokenizer = kConvertTokenizer;
  options.data.end_of_document = "<|end_of_text|>";
  options.data.cache_directory = folder / "cache";
  options.vocab_size = kConvertVocabSize;
  options.num_threads = 2;
  options.shard_bytes = 1024;
  return options;
}

std::vector<int32_t> TokensOf(const PreparedSource& source) {
  std::vector<int32_t> tokens;
  for (const std::string& prefix : source.prefixes) {
    const auto dataset = IndexedDataset::Open(prefix);
    EXPECT_TRUE(dataset.ok()) << dataset.status();
    const size_t before = tokens.size();
    tokens.resize(before + static_cast<size_t>(dataset->num_tokens()));
    EXPECT_TRUE(dataset
                    ->Read(0, dataset->num_tokens(), kConvertVocabSize,
                           tokens.data() + before)
                    .ok());
  }
  return tokens;
}

std::vector<int32_t> ExpectedTokens() {
  const auto tokenizer =
      Tokenizer::FromFiles({.name = "given",
                            .content = *ReadFile(kConvertTokenizer),
                            .end_of_document = "<|end_of_text|>"},
                           kConvertVocabSize);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  std::vector<int32_t> tokens;
  for (int i = 0; i < 300; ++i) {
    EXPECT_TRUE(
        (*tokenizer)
            ->EncodeDocument(absl::StrCat("Line ", i, " of the mill."), &tokens)
            .ok());
  }
  return tokens;
}

std::string MessageOf(const PrepareOptions& options) {
  const auto data = PrepareData(options);
  EXPECT_FALSE(data.ok());
  return std::string(data.status().message());
}

// Goal: the tokens are those of the records in order, however the files are cut
// and however many threads work.
TEST(ConvertTest, EncodesRecordsInOrder) {
  const std::vector<int32_t> expected = ExpectedTokens();
  for (const int64_t shard_bytes : {500, 1024, 0}) {
    for (const int32_t num_threads : {1, 3}) {
      TemporaryFolder folder;
      PrepareOptions options = LinesOptions(folder);
      options.shard_bytes = shard_bytes;
      options.num_threads = num_threads;
      const auto data = PrepareData(options);
      ASSERT_TRUE(data.ok()) << data.status();
      EXPECT_EQ(data->num_documents, 300);
      EXPECT_EQ(TokensOf(data->sources.at(0)), expected) << shard_bytes;
    }
  }
}

// Goal: a conversion that was killed goes on with the shards that it had
// finished. Method: take away what a killed process would not have written yet,
// and leave a part of a file as it would.
TEST(ConvertTest, GoesOnAfterAKill) {
  TemporaryFolder folder;
  const PrepareOptions options = LinesOptions(folder);
  const auto first = PrepareData(options);
  ASSERT_TRUE(first.ok()) << first.status();
  const std::vector<std::string>& prefixes = first->sources.at(0).prefixes;
  ASSERT_GT(prefixes.size(), 8u);
  EXPECT_EQ(first->num_shards_made, static_cast<int64_t>(prefixes.size()));
  const std::filesystem::path cache =
      std::filesystem::path(prefixes[0]).parent_path();
  std::filesystem::remove(cache / "prepared.json");
  std::filesystem::remove(prefixes[2] + ".json");
  std::filesystem::remove(prefixes[5] + ".json");
  std::filesystem::remove(prefixes[5] + ".idx");
  std::filesystem::remove(prefixes[7] + ".bin");
  const std::string left_over = prefixes[5] + ".bin.tmp.1";
  std::filesystem::copy_file(prefixes[0] + ".bin", left_over);
  const auto kept = std::filesystem::last_write_time(prefixes[1] + ".bin");

  const auto second = PrepareData(options);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->num_shards_made, 3);
  EXPECT_EQ(second->fingerprint, first->fingerprint);
  EXPECT_EQ(TokensOf(second->sources.at(0)), ExpectedTokens());
  EXPECT_EQ(std::filesystem::last_write_time(prefixes[1] + ".bin"), kept);
  EXPECT_FALSE(FileExists(left_over));
  EXPECT_TRUE(PrepareData(options)->from_cache);
}

// Goal: several processes share the shards, and each shard is made once.
// Method: threads stand for processes; flock tells open files apart.
TEST(ConvertTest, ProcessesShareTheShards) {
  TemporaryFolder folder;
  const PrepareOptions options = LinesOptions(folder);
  std::vector<absl::StatusOr<PreparedData>> results(
      4, absl::UnknownError("not run"));
  std::vector<std::thread> threads;
  for (auto& result : results) {
    threads.emplace_back([&] { result = PrepareData(options); });
  }
  for (std::thread& thread : threads) thread.join();
  int64_t num_shards_made = 0;
  for (const auto& result : results) {
    ASSERT_TRUE(result.ok()) << result.status();
    num_shards_made += result->num_shards_made;
    EXPECT_EQ(TokensOf(result->sources.at(0)), ExpectedTokens());
  }
  EXPECT_EQ(num_shards_made,
            static_cast<int64_t>(results[0]->sources.at(0).prefixes.size()));
}

// Goal: broken records are left out, counted and the first one named by file
// and line, in any shard; one more than the limit stops the job.
TEST(ConvertTest, CountsBrokenRecords) {
  TemporaryFolder folder;
  PrepareOptions options = LinesOptions(folder);
  std::string lines;
  for (int i = 0; i < 300; ++i) {
    lines += LineOf(i);
    if (i == 99 || i == 150 || i == 250) lines += "{\"text\": 1}\n";
    if (i == 200) lines += "{\"text\": \"\"}\n";
  }
  options.data.sources = {{.files = {folder.Write("c.jsonl", lines)}}};
  options.data.broken_records = 3;
  for (int round = 0; round < 2; ++round) {  // Made, then from the cache.
    const auto data = PrepareData(options);
    ASSERT_TRUE(data.ok()) << data.status();
    EXPECT_EQ(data->num_documents, 300);
    EXPECT_EQ(data->num_empty, 1);
    EXPECT_EQ(
        DescribeBroken(data->broken),
        absl::StrCat("3 broken records left out (first: ", folder / "c.jsonl",
                     ":101: expected a text in column `text`, found a "
                     "number)"));
    EXPECT_EQ(TokensOf(data->sources.at(0)), ExpectedTokens());
  }
  for (const int64_t shard_bytes : {1024, 1000}) {  // From the cache, or new.
    options.data.broken_records = 2;
    options.shard_bytes = shard_bytes;
    EXPECT_THAT(MessageOf(options),
                AllOf(HasSubstr("data.sources[0]: 3 broken records, and "
                                "data.broken_records allows 2"),
                      HasSubstr("c.jsonl:")));
  }
}

// Goal: the limit holds for all sources together.
TEST(ConvertTest, AddsUpBrokenRecordsOfAllSources) {
  TemporaryFolder folder;
  PrepareOptions options = LinesOptions(folder);
  options.data.sources = {
      {.files = {folder.Write("c.jsonl", LineOf(1) + "{}\n")}},
      {.files = {folder.Write("d.jsonl", LineOf(2) + "[]\n")}}};
  options.data.broken_records = 2;
  EXPECT_TRUE(PrepareData(options).ok());
  options.data.broken_records = 1;
  EXPECT_THAT(MessageOf(options),
              HasSubstr("data.sources[1]: 2 broken records"));
}

// Goal: what cannot be converted says file, place and what to do.
TEST(ConvertTest, RefusesWhatCannotBeConverted) {
  TemporaryFolder folder;
  const PrepareOptions options = LinesOptions(folder);
  const auto message_of = [&](DataSourceSpec source) {
    PrepareOptions changed = options;
    changed.data.sources.push_back(std::move(source));
    return MessageOf(changed);
  };
  EXPECT_THAT(
      message_of({.files = {folder.Write("empty.jsonl", "")}}),
      AllOf(HasSubstr("data.sources[1]: 1 file matched, without a "
                      "single usable record"),
            HasSubstr("empty.jsonl is empty"), HasSubstr("remove the source")));
  EXPECT_THAT(message_of({.files = {folder.Write("blank.jsonl", "\n \n")}}),
              HasSubstr("without a single usable record"));
  EXPECT_THAT(message_of({.files = {folder.Write("w.jsonl", "[]\n[]\n")}}),
              AllOf(HasSubstr("without a single usable record"),
                    HasSubstr("w.jsonl:1: expected an object")));
  EXPECT_THAT(message_of({.files = {folder / "none.jsonl"}}),
              HasSubstr("data.sources[1]: there is no file"));
  EXPECT_THAT(message_of({.files = {folder.Write("a.json", "[]")}}),
              AllOf(HasSubstr("a.json does not say what it holds"),
                    HasSubstr("give the source a `format`")));
  EXPECT_THAT(message_of({.files = {folder / "lines/*"}, .column = "body"}),
              AllOf(HasSubstr("11 broken records"), HasSubstr("a.jsonl:1: "),
                    HasSubstr("expected a column `body`, found id, text")));
  const std::string packed = *ReadFile("tests/data/records/lines.jsonl.gz");
  EXPECT_THAT(
      message_of({.files = {folder.Write(
                      "cut.jsonl.gz", packed.substr(0, packed.size() / 2))}}),
      AllOf(HasSubstr("cut.jsonl.gz: ends within its gzip data"),
            HasSubstr("copy it again")));
}

// Goal: sources of different kinds become one list, each with its own counts,
// and a source that did not change is not converted again.
TEST(ConvertTest, PreparesSourcesOfAllKinds) {
  TemporaryFolder folder;
  PrepareOptions options = LinesOptions(folder);
  ASSERT_TRUE(PrepareData(options).ok());
  auto writer = IndexedDatasetWriter::Create(folder / "d", TokenType::kInt32);
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE(writer->AddDocument(std::vector<int32_t>{1, 2, 3}).ok());
  ASSERT_TRUE(writer->Finish().ok());
  folder.Write("t/a.txt", "A text.");
  options.data.sources.push_back({.files = {folder / "d.bin"}, .weight = 2});
  options.data.sources.push_back({.files = {folder / "t/*.txt"}});
  options.data.sources.push_back(
      {.files = {"tests/data/records/lines.jsonl.*"}, .weight = 0.5});
  const auto data = PrepareData(options);
  ASSERT_TRUE(data.ok()) << data.status();
  ASSERT_EQ(data->sources.size(), 4u);
  EXPECT_EQ(data->sources[0].num_documents, 300);
  EXPECT_EQ(data->sources[1].num_tokens, 3);
  EXPECT_EQ(data->sources[1].weight, 2);
  EXPECT_EQ(data->sources[2].num_documents, 1);
  EXPECT_EQ(data->sources[3].num_documents, 600);
  EXPECT_EQ(data->num_documents, 902);
  EXPECT_EQ(data->num_shards_made, 1 + 2);
}

// Goal: a tokenizer is trained on the records of all sources together.
TEST(ConvertTest, TrainsATokenizerOnAllSources) {
  TemporaryFolder folder;
  PrepareOptions options = LinesOptions(folder);
  options.data.sources.push_back(
      {.files = {"tests/data/records/lines.jsonl.zst"}});
  options.data.tokenizer = "auto";
  options.data.end_of_document = "";
  options.vocab_size = 300;
  const auto data = PrepareData(options);
  ASSERT_TRUE(data.ok()) << data.status();
  const auto tokenizer =
      Tokenizer::FromModel(*ReadFile(data->tokenizer_path), "trained", 300);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  std::vector<int32_t> wheel;
  std::vector<int32_t> mill;
  ASSERT_TRUE((*tokenizer)->EncodeDocument("water runs", &wheel).ok());
  ASSERT_TRUE((*tokenizer)->EncodeDocument("of the mill", &mill).ok());
  // Text that it was not trained on would be a piece for each character, and
  // the end.
  EXPECT_LT(wheel.size(), 10u);
  EXPECT_LT(mill.size(), 11u);
  EXPECT_TRUE(PrepareData(options)->from_cache);
}

}  // namespace
}  // namespace millrace
