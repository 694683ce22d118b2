// Preference records as a job names them: from their files to the batches of a
// step.

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/data/chat_data.h"
#include "tests/worker/data/temporary_folder.h"
#include "worker/data/open_batches.h"
#include "worker/data/prepare.h"
#include "worker/data/show_samples.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class PreferenceConvertTest : public testing::Test {
 protected:
  PreferenceConvertTest() {
    WriteChatTokenizer(folder_.path());
    job_.model.vocab_size = kChatVocabSize;
    job_.model.sequence_length = 128;
    job_.training.objective = "dpo";
    job_.training.global_batch = 1;
    job_.training.num_steps = 10;
    job_.data.tokenizer = folder_.path();
    job_.data.cache_directory = folder_ / "cache";
    job_.data.validation_fraction = 0;
    job_.data.broken_records = 0;
  }

  void SetLines(const std::string& lines) {
    job_.data.sources = {{.files = {folder_.Write("pairs.jsonl", lines)},
                          .kind = "preference",
                          .column = ""}};
  }
  std::string Shown() const {
    const auto batches = PrepareAndOpenBatches(job_, 1);
    if (!batches.ok()) return std::string(batches.status().message());
    const auto samples = ReadSamples(job_, batches->get(), 1, 1);
    if (!samples.ok()) return std::string(samples.status().message());
    const auto tokenizer = Tokenizer::FromFiles(
        *ReadTokenizerFiles(folder_.path(), ""), job_.model.vocab_size);
    return DescribeSample(samples->front(), tokenizer->get(), 1000);
  }
  std::string ShownOf(const std::string& lines) {
    SetLines(lines);
    return Shown();
  }

  TemporaryFolder folder_;
  JobSpec job_;
};

// Goal: both answers follow the prompt as the template writes it, and they
// alone are trained, however a record says it. Method: a prompt with answers as
// texts and as messages, and whole conversations, with and without a copy of
// the prompt.
TEST_F(PreferenceConvertTest, TrainsBothAnswers) {
  EXPECT_THAT(ShownOf("{\"prompt\": \"2 + 2 =\", \"chosen\": \" 4\", "
                      "\"rejected\": \" 5\"}\n"),
              AllOf(HasSubstr("    - 2 + 2 =\n    +  4<|im_end|>\n"),
                    HasSubstr("    - 2 + 2 =\n    +  5<|im_end|>\n"),
                    HasSubstr(" 2 documents")));
  const std::string user = "{\"role\": \"user\", \"content\": \"2 + 2?\"}";
  const auto says = [](const std::string& text) {
    return absl::StrCat("{\"role\": \"assistant\", \"content\": \"", text,
                        "\"}");
  };
  const std::string prompt =
      "    - <|im_start|>user\n    - 2 + 2?<|im_end|>\n"
      "    - <|im_start|>assistant\n    + ";
  const auto expected = AllOf(HasSubstr(prompt + "4.<|im_end|>\n"),
                              HasSubstr(prompt + "5!<|im_end|>\n"));
  EXPECT_THAT(ShownOf(absl::StrCat("{\"prompt\": [", user, "], \"chosen\": [",
                                   says("4."), "], \"rejected\": [", says("5!"),
                                   "]}\n")),
              expected);
  const std::string conversations =
      absl::StrCat("\"chosen\": [", user, ", ", says("4."),
                   "], \"rejected\": [", user, ", ", says("5!"), "]}\n");
  EXPECT_THAT(ShownOf("{" + conversations), expected);
  EXPECT_THAT(ShownOf("{\"prompt\": \"2 + 2?\", " + conversations), expected);
  EXPECT_THAT(
      ShownOf(absl::StrCat("{\"prompt\": [", user, "], ", conversations)),
      AllOf(expected, Not(HasSubstr("    - 2 + 2?<|im_end|>\n"
                                    "    - <|im_start|>user\n"))));
  // As UltraFeedback has it: `messages` repeats the chosen conversation.
  EXPECT_THAT(ShownOf(absl::StrCat("{\"messages\": [", user, ", ", says("4."),
                                   "], ", conversations)),
              expected);
}

// Goal: records that are no pairs are named, with what was expected.
TEST_F(PreferenceConvertTest, NamesBrokenRecords) {
  EXPECT_THAT(
      ShownOf("{\"prompt\": \"a\", \"chosen\": \"b\"}\n"),
      AllOf(HasSubstr("pairs.jsonl:1: "), HasSubstr("found no `rejected`")));
  EXPECT_THAT(ShownOf("{\"chosen\": \"a\", \"rejected\": \"b\"}\n"),
              HasSubstr("expected `prompt` beside"));
  EXPECT_THAT(ShownOf("{\"prompt\": \"a\", \"chosen\": \"b\", "
                      "\"rejected\": [{\"role\": \"user\"}]}\n"),
              HasSubstr("alike: two texts, or two lists"));
  const std::string a =
      "[{\"role\": \"user\", \"content\": \"a\"}, "
      "{\"role\": \"user\", \"content\": \"b\"}]";
  EXPECT_THAT(
      ShownOf(absl::StrCat("{\"chosen\": ", a, ", \"rejected\": ", a, "}\n")),
      HasSubstr("say the same"));
  EXPECT_THAT(
      ShownOf("{\"chosen\": [{\"role\": \"user\", \"content\": \"a\"}], "
              "\"rejected\": [{\"role\": \"user\", \"content\": \"b\"}]}\n"),
      HasSubstr("no common prompt"));
  EXPECT_THAT(
      ShownOf("{\"prompt\": [{\"role\": \"user\", \"content\": \"a\"}], "
              "\"chosen\": [{\"role\": \"user\", \"content\": \"b\"}], "
              "\"rejected\": [{\"role\": \"user\", \"content\": \"c\"}]}\n"),
      HasSubstr("`chosen` has no token to train"));
}

std::string PairLines(int count, int repeated) {
  std::string lines;
  for (int i = 0; i < count; ++i) {
    std::string prompt = absl::StrCat("What is ", i, " + 1?");
    for (int k = 0; k < repeated * (i % 3); ++k) prompt += " Think.";
    absl::StrAppend(&lines, "{\"prompt\": \"", prompt, "\", \"chosen\": \" ",
                    i + 1, "\", \"rejected\": \" no idea\"}\n");
  }
  return lines;
}

// Goal: pairs share sequences, whole; each has a place in one of them; the
// share of trained tokens counts pairs. Method: 30 pairs of three lengths, read
// as steps and as passes over pairs do.
TEST_F(PreferenceConvertTest, PacksWholePairs) {
  SetLines(PairLines(30, 1));
  const auto batches = PrepareAndOpenBatches(job_, 1);
  ASSERT_TRUE(batches.ok()) << batches.status();
  const std::vector<PairSource*> sources = (*batches)->PairSources();
  ASSERT_EQ(sources.size(), 1u);
  PairSource& pairs = *sources.front();
  EXPECT_EQ(pairs.num_pairs(), 30);
  EXPECT_LT(pairs.num_pair_sequences(), 25);
  std::vector<float> references;
  for (int i = 0; i < 60; ++i)
    references.push_back(-0.5f * static_cast<float>(i));
  pairs.SetReferences(references);
  const int64_t length = job_.model.sequence_length;
  std::vector<int32_t> ids(4 * static_cast<size_t>(length), -1);
  std::vector<float> of_tokens(static_cast<size_t>(length));
  const BatchPointers out = {.tokens = ids.data(),
                             .targets = ids.data() + length,
                             .document_starts = ids.data() + 2 * length,
                             .pair_starts = ids.data() + 3 * length,
                             .references = of_tokens.data()};
  std::vector<int> seen(30);
  for (int64_t number = 0; number < pairs.num_pair_sequences(); ++number) {
    std::fill_n(out.pair_starts, length, -1);
    ASSERT_TRUE(pairs.ReadPairs(number, out).ok());
    for (const PairSource::Place& place : pairs.PlacesOf(number)) {
      ++seen[static_cast<size_t>(place.pair_idx)];
      EXPECT_EQ(out.pair_starts[place.chosen_begin], place.chosen_begin);
      EXPECT_EQ(out.pair_starts[place.rejected_begin], place.chosen_begin);
      EXPECT_EQ(out.document_starts[place.chosen_begin], place.chosen_begin);
      EXPECT_EQ(out.document_starts[place.rejected_begin],
                place.rejected_begin);
      EXPECT_EQ(out.references[place.chosen_begin], -place.pair_idx);
      EXPECT_EQ(out.references[place.rejected_begin], -place.pair_idx - 0.5f);
    }
  }
  EXPECT_THAT(seen, testing::Each(1));
  double num_pairs = 0;
  for (int64_t step = 1; step <= pairs.num_pair_sequences(); ++step) {
    num_pairs += *(*batches)->TrainedShare(DataSplit::kTraining, step, 1) *
                 static_cast<double>(length);
  }
  EXPECT_NEAR(num_pairs, 30, 1e-9);
}

// Goal: a pair longer than a sequence is left out, whole; none that fits ends
// the job.
TEST_F(PreferenceConvertTest, LeavesLongPairsOut) {
  SetLines(PairLines(30, 40));
  const auto prepared = PrepareData({.data = job_.data,
                                     .vocab_size = job_.model.vocab_size,
                                     .num_threads = 1});
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_THAT(*DescribeEpochs(job_, *prepared),
              AllOf(HasSubstr("10 samples in "),
                    HasSubstr("20 left out, longer than a sequence"),
                    Not(HasSubstr("shortened"))));
  job_.model.sequence_length = 8;
  EXPECT_THAT(Shown(), HasSubstr("0 trained tokens in 30 samples of "));
}

}  // namespace
}  // namespace millrace
