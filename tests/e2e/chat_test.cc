// Instruction tuning from a job file, with the real binary.

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/job_process.h"
#include "tests/worker/data/chat_data.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string WriteInto(const JobFolder& folder, const std::string& name,
                      const std::string& text) {
  const std::string path = folder.path + "/" + name;
  std::ofstream(path) << text;
  return path;
}

struct ChatJob {
  int num_steps = 20;
  // Equal layouts give equal bits.
  std::string layout = "{data: 2, micro_batch: 2, zero: 1}";
  std::string resume = "none";
  std::string source;  // More keys of the source.
};

std::string WriteChatJob(const JobFolder& folder, const ChatJob& job) {
  return WriteInto(
      folder, "job.yaml",
      absl::StrCat(
          "name: tiny\nmodel: {vocab_size: ", kChatVocabSize,
          ", hidden: 32, layers: 2, heads: 4, kv_heads: 2, ffn_hidden: 64, "
          "sequence_length: 128}\ndata:\n  sources:\n    - {path: ",
          folder.path, "/chats.jsonl, kind: chat", job.source,
          "}\n  tokenizer: ", folder.path, "\n  cache_directory: ", folder.path,
          "/cache\n  validation_fraction: 0.1\ntraining:\n  steps: ",
          job.num_steps,
          "\n  global_batch: 8\n  seed: 3\n  validation_interval_steps: 10\n"
          "  optimizer: {learning_rate: 3e-3, warmup_steps: 5}\n"
          "evaluation: {interval_steps: 10, sets: {held: {path: ",
          folder.path,
          "/held.jsonl, kind: chat}}}\n"
          "resources: {devices_per_agent: 2, threads_per_device: 1}\n"
          "layout: ",
          job.layout, "\ncheckpoint: {interval_steps: 10, keep: 9, resume: ",
          job.resume, "}\noutput: {directory: ", folder.path, "/runs}\n"));
}

void WriteChatData(const JobFolder& folder) {
  WriteChatTokenizer(folder.path);
  WriteInto(folder, "chats.jsonl", ChatLines(0, 200));
  WriteInto(folder, "held.jsonl", ChatLines(200, 230));
}

// Goal: a job with chat records trains, and a run that is resumed goes on
// exactly. Method: 20 steps, then the last ten again from the checkpoint of
// step 10; the model learns from the answers; `score` measures the held-out set
// as the run did.
TEST(ChatTest, TrainsAndResumes) {
  const JobFolder folder("chat");
  WriteChatData(folder);
  const std::string job = WriteChatJob(folder, {});
  std::vector<nlohmann::json> whole;
  std::string run;
  {
    JobProcess process(folder, RunCommand(job));
    ASSERT_EQ(process.Wait(), 0) << process.Output();
    EXPECT_THAT(process.Output(),
                AllOf(HasSubstr("samples in "), HasSubstr(" % filled, "),
                      HasSubstr("of tokens trained"),
                      HasSubstr("evaluation after step 20: held loss ")));
    whole = ReadLines(folder, "metrics.jsonl");
    run = std::filesystem::canonical(folder.path + "/runs/tiny-latest");
  }
  ASSERT_GE(whole.size(), 20u);
  EXPECT_LT(whole.back()["loss"].get<double>(),
            0.8 * whole.front()["loss"].get<double>());
  WriteChatJob(folder,
               {.resume = absl::StrCat(run, "/checkpoints/step-00000010")});
  JobProcess process(folder, RunCommand(job));
  ASSERT_EQ(process.Wait(), 0) << process.Output();
  const std::vector<nlohmann::json> rest = ReadLines(folder, "metrics.jsonl");
  ASSERT_EQ(rest.size() + 10, whole.size());
  for (size_t i = 0; i < rest.size(); ++i) {
    EXPECT_EQ(rest[i]["loss"], whole[i + 10]["loss"]) << i;
  }
  JobProcess score(folder, {MILLRACE_BINARY, "score", job, "--checkpoint",
                            absl::StrCat(run, "/checkpoints/step-00000020")});
  ASSERT_EQ(score.Wait(), 0) << score.Output();
  EXPECT_THAT(score.Output(), HasSubstr("held: loss "));
}

// Goal: one can look at what is trained.
TEST(ChatTest, ShowsWhatIsTrained) {
  const JobFolder folder("chat-show");
  WriteChatData(folder);
  JobProcess process(folder, {MILLRACE_BINARY, "data", "show",
                              WriteChatJob(folder, {}), "--samples", "1"});
  ASSERT_EQ(process.Wait(), 0) << process.Output();
  EXPECT_THAT(process.Output(),
              AllOf(HasSubstr(" documents, "), HasSubstr("    - What is "),
                    HasSubstr("    + "), HasSubstr(".<|im_end|>\n")));
}

// Goal: data that cannot be trained on end the command with what is wrong.
TEST(ChatTest, RefusesBadData) {
  const JobFolder folder("chat-bad");
  WriteChatData(folder);
  const auto run = [&](const std::string& lines, const ChatJob& job = {}) {
    WriteInto(folder, "chats.jsonl", lines);
    JobProcess process(folder, RunCommand(WriteChatJob(folder, job)));
    EXPECT_NE(process.Wait(), 0) << process.Output();
    EXPECT_EQ(CountEvents(folder, "generation_started"), 0);
    return process.Output();
  };
  std::string broken;
  for (int i = 0; i < 11; ++i) broken += "{\"text\": 1}\n";
  EXPECT_THAT(run(ChatLines(0, 20) + broken),
              AllOf(HasSubstr("11 broken records"),
                    HasSubstr("chats.jsonl:21: expected a record with")));
  EXPECT_THAT(run("{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}"),
              HasSubstr("0 trained tokens in 1 samples of "));
  EXPECT_THAT(run(ChatLines(0, 20), {.source = ", train_on: answers"}),
              HasSubstr("expected assistant, completion or all"));
}

}  // namespace
}  // namespace millrace
