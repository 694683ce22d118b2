// Preference tuning from a job file, with the real binary.

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/job_process.h"
#include "tests/worker/data/chat_data.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string WritePairFile(const JobFolder& folder, const std::string& name,
                          const std::string& text) {
  const std::string path = folder.path + "/" + name;
  std::ofstream(path) << text;
  return path;
}

std::string PairsOfAnswers(int count) {
  std::string lines;
  for (int i = 0; i < count; ++i) {
    absl::StrAppend(&lines, "{\"prompt\": [{\"role\": \"user\", \"content\": ",
                    "\"What is ", i, " + ", i % 7,
                    "?\"}], \"chosen\": [{\"role\": \"assistant\", ",
                    "\"content\": \"", i + i % 7,
                    ".\"}], \"rejected\": [{\"role\": \"assistant\", ",
                    "\"content\": \"I do not know.\"}]}\n");
  }
  return lines;
}

struct PairJob {
  // Pinned, so that runs that are compared have one layout.
  std::string layout = "{data: 2, zero: 1, micro_batch: 2}";
  std::string objective = "dpo";
  std::string kind = "preference";
  std::string resume = "none";
};

std::string WritePairJob(const JobFolder& folder, const PairJob& job) {
  WriteChatTokenizer(folder.path);
  return WritePairFile(
      folder, "job.yaml",
      absl::StrCat(
          "name: tiny\nmodel: {vocab_size: ", kChatVocabSize,
          ", hidden: 32, layers: 2, heads: 4, kv_heads: 2, ffn_hidden: 64, "
          "sequence_length: 128}\ndata:\n  sources:\n    - {path: ",
          folder.path, "/pairs.jsonl, kind: ", job.kind,
          "}\n  tokenizer: ", folder.path, "\n  cache_directory: ", folder.path,
          "/cache\n  validation_fraction: 0.1\ntraining:\n  steps: 20\n"
          "  global_batch: 8\n  seed: 3\n  validation_interval_steps: 10\n"
          "  objective: ",
          job.objective,
          "\n  optimizer: {learning_rate: 1e-3, warmup_steps: 5}\n"
          "resources: {devices_per_agent: 2, threads_per_device: 1}\n"
          "layout: ",
          job.layout, "\ncheckpoint: {interval_steps: 10, keep: 9, resume: ",
          job.resume, "}\noutput: {directory: ", folder.path, "/runs}\n"));
}

int CountReferenceFiles(const JobFolder& folder) {
  int count = 0;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(folder.path + "/cache")) {
    count += absl::StartsWith(entry.path().filename().string(), "references-");
  }
  return count;
}

// Goal: a job with pairs begins at a loss of ln 2, and its margin grows; a run
// that is resumed goes on exactly, with the references of the weights that it
// started from. Method: 20 steps on two replicas, then the last ten again from
// the checkpoint of step 10, first with the references that the first run kept,
// then without them.
TEST(PreferenceJobTest, TrainsAndResumes) {
  const JobFolder folder("preference");
  WritePairFile(folder, "pairs.jsonl", PairsOfAnswers(200));
  const std::string job = WritePairJob(folder, {});
  std::vector<nlohmann::json> whole;
  std::string run;
  {
    JobProcess process(folder, RunCommand(job));
    ASSERT_EQ(process.Wait(), 0) << process.Output();
    whole = ReadLines(folder, "metrics.jsonl");
    run = std::filesystem::canonical(folder.path + "/runs/tiny-latest");
  }
  ASSERT_GE(whole.size(), 20u);
  EXPECT_NEAR(whole.front()["loss"].get<double>(), std::log(2.0), 1e-5);
  EXPECT_NEAR(whole.front()["rewards"]["margin"].get<double>(), 0, 1e-5);
  EXPECT_LT(whole.back()["loss"].get<double>(), 0.65);
  EXPECT_GT(whole.back()["rewards"]["margin"].get<double>(), 0.1);
  EXPECT_GT(whole.back()["rewards"]["accuracy"].get<double>(), 0.9);
  EXPECT_LT(whole.back()["validation_loss"].get<double>(), 0.65);
  EXPECT_EQ(CountReferenceFiles(folder), 1);
  WritePairJob(folder,
               {.resume = absl::StrCat(run, "/checkpoints/step-00000010")});
  for (const bool has_references : {true, false}) {
    SCOPED_TRACE(has_references);
    if (!has_references) {
      std::filesystem::remove_all(folder.path + "/cache");
    }
    JobProcess process(folder, RunCommand(job));
    ASSERT_EQ(process.Wait(), 0) << process.Output();
    const std::vector<nlohmann::json> rest = ReadLines(folder, "metrics.jsonl");
    ASSERT_EQ(rest.size() + 10, whole.size());
    for (size_t i = 0; i < rest.size(); ++i) {
      EXPECT_EQ(rest[i]["loss"], whole[i + 10]["loss"]) << i;
    }
    EXPECT_EQ(CountReferenceFiles(folder), 1);
  }
}

// Goal: stages and tensor ranks get the same numbers.
TEST(PreferenceJobTest, TrainsOnAPipeline) {
  const JobFolder folder("preference-pipeline");
  WritePairFile(folder, "pairs.jsonl", PairsOfAnswers(200));
  std::vector<double> losses;
  for (const char* layout : {"{pipeline: 2}", "{tensor: 2}"}) {
    JobProcess process(folder,
                       RunCommand(WritePairJob(folder, {.layout = layout})));
    ASSERT_EQ(process.Wait(), 0) << process.Output();
    losses.push_back(
        ReadLines(folder, "metrics.jsonl").back()["loss"].get<double>());
  }
  EXPECT_NEAR(losses[0], losses[1], 2e-5);
}

// Goal: an objective and data that do not fit each other are refused, with what
// to change.
TEST(PreferenceJobTest, RefusesDataThatDoesNotFit) {
  const JobFolder folder("preference-bad");
  WritePairFile(folder, "pairs.jsonl", PairsOfAnswers(20));
  const auto output = [&](const PairJob& job) {
    JobProcess process(folder, RunCommand(WritePairJob(folder, job)));
    EXPECT_NE(process.Wait(), 0) << process.Output();
    return process.Output();
  };
  EXPECT_THAT(output({.kind = "chat"}), AllOf(HasSubstr("training.objective"),
                                              HasSubstr("kind: preference")));
  EXPECT_THAT(output({.objective = "cross_entropy"}),
              AllOf(HasSubstr("training.objective"), HasSubstr("dpo")));
  WritePairFile(folder, "pairs.jsonl", "{\"prompt\": \"a\"}\n");
  EXPECT_THAT(output({}), HasSubstr("pairs.jsonl:1: expected `chosen` and "
                                    "`rejected`"));
}

}  // namespace
}  // namespace millrace
