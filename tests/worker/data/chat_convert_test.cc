// Chat records as a job names them: from their files to the batches of a step.

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/data/chat_data.h"
#include "tests/worker/data/temporary_folder.h"
#include "worker/data/evaluation_batches.h"
#include "worker/data/open_batches.h"
#include "worker/data/prepare.h"
#include "worker/data/show_samples.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class ChatConvertTest : public testing::Test {
 protected:
  ChatConvertTest() {
    WriteChatTokenizer(folder_.path());
    job_.model.vocab_size = kChatVocabSize;
    job_.model.sequence_length = 128;
    job_.training.global_batch = 4;
    job_.training.num_steps = 10;
    job_.data.tokenizer = folder_.path();
    job_.data.cache_directory = folder_ / "cache";
    job_.data.validation_fraction = 0;
    SetLines(ChatLines(0, 100));
  }

  DataSourceSpec Chat(const std::string& path) const {
    return {.files = {path}, .kind = "chat", .column = ""};
  }
  void SetLines(const std::string& lines) {
    job_.data.sources = {Chat(folder_.Write("chats.jsonl", lines))};
  }
  absl::StatusOr<PreparedData> Prepare(int64_t shard_bytes = 0,
                                       int32_t num_threads = 2) const {
    return PrepareData({.data = job_.data,
                        .vocab_size = job_.model.vocab_size,
                        .num_threads = num_threads,
                        .shard_bytes = shard_bytes});
  }
  std::string Message() const {
    const auto batches = PrepareAndOpenBatches(job_, 1);
    return batches.ok() ? "no error" : std::string(batches.status().message());
  }
  // As `millrace data show` prints it, by the whole tokenizer.
  std::string Shown(int64_t num_samples) const {
    const auto batches = PrepareAndOpenBatches(job_, 1);
    if (!batches.ok()) return std::string(batches.status().message());
    const auto samples = ReadSamples(job_, batches->get(), 1, num_samples);
    if (!samples.ok()) return std::string(samples.status().message());
    const auto tokenizer = Tokenizer::FromFiles(
        *ReadTokenizerFiles(folder_.path(), ""), job_.model.vocab_size);
    std::string text;
    for (const Sample& sample : *samples) {
      text += DescribeSample(sample, tokenizer->get(), 1000);
    }
    return text;
  }

  TemporaryFolder folder_;
  JobSpec job_;
};

// Goal: what a step reads is the conversation as the template writes it, with
// the answer trained up to its end and nothing else.
TEST_F(ChatConvertTest, TrainsTheAnswer) {
  SetLines(ChatLine(12));
  job_.training.global_batch = 1;
  EXPECT_THAT(Shown(1),
              AllOf(HasSubstr("    - <|im_start|>user\n"
                              "    - What is 12 + 5? Think. "
                              "Think.<|im_end|>\n"
                              "    - <|im_start|>assistant\n"
                              "    + 17.<|im_end|>\n"),
                    HasSubstr(" 1 document"), HasSubstr(" places left empty")));
  job_.data.sources[0].train_on = "all";
  EXPECT_THAT(Shown(1), AllOf(HasSubstr("    + user\n"),
                              HasSubstr("    + 17.<|im_end|>\n")));
}

// Goal: prompts with completions need no template, and a column may have
// another name.
TEST_F(ChatConvertTest, ReadsOtherRecords) {
  std::filesystem::remove(folder_ / "chat_template.jinja");
  SetLines("{\"prompt\": \"2 + 2 =\", \"completion\": \" 4\"}\n");
  job_.training.global_batch = 1;
  EXPECT_THAT(Shown(1), HasSubstr("    - 2 + 2 =\n    +  4<|im_end|>\n"));
  EXPECT_THAT((SetLines(ChatLine(1)), Message()),
              AllOf(HasSubstr("chats.jsonl:1: messages need a chat template"),
                    HasSubstr("data.chat_template")));
  job_.data.chat_template = "tests/data/chat_templates/chatml.jinja";
  SetLines(
      "{\"text\": 1, \"talk\": [{\"from\": \"human\", \"value\": \"Hi\"}, "
      "{\"from\": \"gpt\", \"value\": \"Hello\"}]}\n");
  job_.data.sources[0].column = "talk";
  EXPECT_THAT(Shown(1), HasSubstr("    + Hello<|im_end|>\n"));
  job_.data.sources[0].column = "chat";
  EXPECT_THAT(Message(), HasSubstr("expected a column `chat` with messages"));
}

// Goal: rows of Parquet are read as lines are. Method: a file in which rows
// have no messages, one without a text, or none of an assistant, and the same
// rows as lines.
TEST_F(ChatConvertTest, ReadsParquet) {
  const std::string folder = "tests/data/records/parquet/";
  job_.data.broken_records = 100;
  job_.data.sources = {Chat(folder + "snappy_v1.parquet")};
  const auto rows = Prepare();
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_EQ(rows->num_documents, 114);
  EXPECT_EQ(rows->broken.count, 86);
  EXPECT_THAT(DescribeBroken(rows->broken),
              HasSubstr("snappy_v1.parquet, row 1: messages: expected a list "
                        "of messages"));
  EXPECT_THAT(*DescribeEpochs(job_, *rows),
              AllOf(HasSubstr("28 samples in "),
                    HasSubstr("86 left out, without a trained token")));
  const std::string shown = Shown(2);
  job_.data.sources = {Chat(folder + "rows.jsonl")};
  EXPECT_EQ(Shown(2), shown);
}

// Goal: samples are the same however files are cut and however many threads
// work; a conversion that was killed goes on; a second one is cached.
TEST_F(ChatConvertTest, ConvertsInShards) {
  const auto whole = Prepare(0, 1);
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ(whole->num_documents, 100);
  const std::string expected = Shown(4);
  const auto first = Prepare(2000, 3);
  ASSERT_TRUE(first.ok()) << first.status();
  const std::vector<std::string>& prefixes = first->sources.at(0).prefixes;
  ASSERT_GT(prefixes.size(), 4u);
  EXPECT_EQ(first->num_tokens, whole->num_tokens);
  const std::filesystem::path cache =
      std::filesystem::path(prefixes[0]).parent_path();
  std::filesystem::remove(cache / "prepared.json");
  std::filesystem::remove(prefixes[1] + ".json");
  std::filesystem::remove(prefixes[2] + ".trained.idx");
  const std::string left_over = prefixes[1] + ".trained.bin.tmp.1";
  std::filesystem::copy_file(prefixes[0] + ".bin", left_over);
  const auto second = Prepare(2000, 3);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->num_shards_made, 2);
  EXPECT_EQ(second->fingerprint, first->fingerprint);
  EXPECT_FALSE(FileExists(left_over));
  EXPECT_TRUE(Prepare(2000)->from_cache);
  const auto batches = OpenBatches(job_, PrefixesBySource(*second));
  ASSERT_TRUE(batches.ok()) << batches.status();
}

// Goal: whatever changes a sample makes new token files, and nothing else does.
TEST_F(ChatConvertTest, CachesByAllThatMatters) {
  ASSERT_TRUE(Prepare().ok());
  const JobSpec unchanged = job_;
  const auto is_cached = [&] {
    const auto data = Prepare();
    EXPECT_TRUE(data.ok()) << data.status();
    return data->from_cache;
  };
  job_.data.packing = false;
  job_.data.long_samples = "drop";
  job_.data.sources[0].weight = 3;
  EXPECT_TRUE(is_cached());
  job_.data.sources[0].train_on = "completion";
  EXPECT_FALSE(is_cached());
  job_ = unchanged;
  job_.data.chat_date = "2026-11-23";
  EXPECT_FALSE(is_cached());
  job_ = unchanged;
  job_.data.chat_template = "tests/data/chat_templates/qwen25_style.jinja";
  EXPECT_FALSE(is_cached());
  job_ = unchanged;
  folder_.Write("tokenizer_config.json",
                "{\"eos_token\": \"<|im_end|>\", \"pad_token\": \"x\"}");
  EXPECT_FALSE(is_cached());
}

// Goal: records that cannot be used are named by file and line with what is
// wrong, left out and counted, and too many of them stop.
TEST_F(ChatConvertTest, CountsBrokenRecords) {
  folder_.Write("chat_template.jinja",
                "{% for m in messages %}{% if m.role == 'tool' %}{{ "
                "raise_exception('no tools here') }}{% endif %}"
                "{{ m.content }}{% endfor %}");
  const std::string answer = "{\"role\": \"assistant\", \"content\": \"b\"}";
  const std::string good = absl::StrCat("{\"messages\": [", answer, "]}\n");
  const auto why = [&](const std::string& line) {
    SetLines(good + line + "\n" + good);
    const auto data = Prepare();
    return data.ok() ? absl::StrCat(DescribeBroken(data->broken), " kept ",
                                    data->num_documents)
                     : std::string(data.status().message());
  };
  const std::string at =
      "1 broken record left out (first: " + folder_ / "chats.jsonl:2: ";
  EXPECT_THAT(why("{\"text\": \"a\"}"),
              AllOf(HasSubstr(at + "expected a record with `messages`"),
                    HasSubstr("kept 2")));
  EXPECT_THAT(why("{\"messages\": []}"), HasSubstr("expected a list"));
  EXPECT_THAT(why("{\"messages\": [{\"content\": \"a\"}]}"),
              HasSubstr("messages[0]: expected an object with a text in"));
  EXPECT_THAT(why("{\"messages\": [{\"role\": \"tool\"}, " + answer + "]}"),
              HasSubstr("no tools here"));
  EXPECT_THAT(why("{\"conversations\": [{\"from\": \"x\", \"value\": \"\"}]}"),
              HasSubstr("expected human, gpt, system or tool, found 'x'"));
  EXPECT_THAT(why("{\"messages\""), HasSubstr(at));
  job_.data.broken_records = 0;
  EXPECT_THAT(why("{}"),
              AllOf(HasSubstr("data.sources[0]: 1 broken record, and "
                              "data.broken_records allows 0"),
                    HasSubstr("chats.jsonl:2: ")));
}

// Goal: a template that is not there, or lacks what it needs, is named with
// what to do.
TEST_F(ChatConvertTest, NamesTemplatesThatCannotRun) {
  job_.data.chat_template = folder_ / "none.jinja";
  EXPECT_THAT(Message(), HasSubstr("data.chat_template: there is no file "));
  job_.data.chat_template = folder_.Write("torn.jinja", "{% for m in");
  EXPECT_THAT(Message(), HasSubstr("torn.jinja:1: "));
  job_.data.chat_template = folder_.Write(
      "date.jinja",
      "{{ strftime_now('%Y') }}{% for m in messages %}{{ m.role + m.content }}"
      "{% endfor %}");
  EXPECT_THAT(Message(), AllOf(HasSubstr("11 broken records"),
                               HasSubstr("give it one in data.chat_date")));
  job_.data.chat_date = "2026-11-23";
  EXPECT_THAT(Shown(1), HasSubstr("    - 2026user"));
}

// Goal: data that trains nothing stops before training, with what to do.
TEST_F(ChatConvertTest, RefusesWhatTrainsNothing) {
  SetLines(
      "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}\n"
      "{\"messages\": [{\"role\": \"User\", \"content\": \"b\"}]}\n");
  EXPECT_THAT(Message(),
              AllOf(HasSubstr("data.sources[0]: 0 trained tokens in 2 samples "
                              "of "),
                    HasSubstr("chats.jsonl"), HasSubstr("train_on: all")));
  // The answers lie beyond the end of a sequence.
  SetLines(ChatLines(0, 5));
  job_.model.sequence_length = 8;
  EXPECT_THAT(Message(), AllOf(HasSubstr("0 trained tokens in 5 samples of "),
                               HasSubstr("model.sequence_length")));
  job_.model.sequence_length = 128;
  job_.data.sources[0].format = "auto";
  job_.data.sources[0].files = {folder_.Write("chats.txt", "a")};
  EXPECT_THAT(Message(), HasSubstr("chats.txt is text by its name"));
  job_.data.tokenizer = folder_.Write("other.model", "SentencePiece");
  SetLines(ChatLines(0, 5));
  EXPECT_THAT(Message(), HasSubstr("chat records need a tokenizer.json"));
}

// Goal: chat mixes with other chat and with text, rows by weight, and the table
// says what becomes of the samples. The trained share of a step is that of its
// rows.
TEST_F(ChatConvertTest, MixesWithText) {
  std::string text;
  for (int i = 0; i < 400; ++i) absl::StrAppend(&text, "Line ", i, ".\n");
  job_.data.sources[0].weight = 3;
  job_.data.sources.push_back({.files = {folder_.Write("a.txt", text)}});
  job_.data.sources.push_back(
      Chat(folder_.Write("more.jsonl", ChatLines(100, 130))));
  const auto data = Prepare();
  ASSERT_TRUE(data.ok()) << data.status();
  const auto table = DescribeEpochs(job_, *data);
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_THAT(*table, AllOf(HasSubstr("chats.jsonl: 100 samples in "),
                            HasSubstr("more.jsonl: 30 samples in "),
                            HasSubstr(" % filled, ")));
  const auto batches = OpenBatches(job_, PrefixesBySource(*data));
  ASSERT_TRUE(batches.ok()) << batches.status();
  constexpr size_t kSize = 4 * 128;
  int64_t num_rows_of_text = 0;
  for (int64_t step = 1; step <= 10; ++step) {
    std::vector<int32_t> tokens(kSize), targets(kSize), starts(kSize);
    ASSERT_TRUE((*batches)
                    ->Fill({.split = DataSplit::kTraining,
                            .step = step,
                            .global_batch = 4,
                            .first_sequence_idx = 0,
                            .num_sequences = 4},
                           {tokens.data(), targets.data(), starts.data()})
                    .ok());
    const auto num_trained = std::ranges::count_if(
        targets, [](int32_t target) { return target >= 0; });
    EXPECT_DOUBLE_EQ(*(*batches)->TrainedShare(DataSplit::kTraining, step, 4),
                     static_cast<double>(num_trained) / kSize);
    for (size_t row = 0; row < 4; ++row) {
      const auto begin = targets.begin() + static_cast<int64_t>(row) * 128;
      num_rows_of_text += std::all_of(
          begin, begin + 128, [](int32_t target) { return target >= 0; });
    }
  }
  EXPECT_NEAR(static_cast<double>(num_rows_of_text), 40.0 / 5, 3);
}

// Goal: a set of an evaluation may hold chat records; its passes count trained
// tokens alone.
TEST_F(ChatConvertTest, EvaluatesChat) {
  job_.evaluation.sets["held"] =
      Chat(folder_.Write("held.jsonl", ChatLines(200, 230)));
  const auto data = Prepare();
  ASSERT_TRUE(data.ok()) << data.status();
  const auto sets = PrepareEvaluation(job_, *data, 1);
  ASSERT_TRUE(sets.ok()) << sets.status();
  auto batches = EvaluationBatches::Open(job_, nullptr, *sets);
  ASSERT_TRUE(batches.ok()) << batches.status();
  (*batches)->Select(0);
  const int64_t num_sequences = (*batches)->num_sequences(0);
  EXPECT_LT(num_sequences, 30);
  constexpr size_t kSize = 4 * 128;
  double num_trained = 0;
  double shares = 0;
  for (int64_t pass = 1; (pass - 1) * 4 < num_sequences; ++pass) {
    std::vector<int32_t> tokens(kSize), targets(kSize), starts(kSize);
    ASSERT_TRUE((*batches)
                    ->Fill({.split = DataSplit::kValidation,
                            .step = pass,
                            .global_batch = 4,
                            .first_sequence_idx = 0,
                            .num_sequences = 4},
                           {tokens.data(), targets.data(), starts.data()})
                    .ok());
    num_trained += static_cast<double>(std::ranges::count_if(
        targets, [](int32_t target) { return target >= 0; }));
    shares += *(*batches)->TrainedShare(DataSplit::kValidation, pass, 4);
  }
  EXPECT_GT(num_trained, 30);
  EXPECT_DOUBLE_EQ(shares * kSize, num_trained);
  job_.evaluation.sets["held"].files = {
      folder_.Write("bad.jsonl", "{\"messages\": 1}\n")};
  EXPECT_THAT(std::string(PrepareEvaluation(job_, *data, 1).status().message()),
              AllOf(HasSubstr("evaluation.sets.held: 1 file matched"),
                    HasSubstr("bad.jsonl:1: ")));
}

}  // namespace
}  // namespace millrace
