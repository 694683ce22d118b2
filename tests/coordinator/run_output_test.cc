#include "coordinator/run_output.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/files.h"
#include "coordinator/progress.h"

namespace millrace {
namespace {

class RunOutputTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        testing::TempDir() + "/millrace-output-" + std::to_string(getpid());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  static StepRecord Record(int64_t generation, int64_t step) {
    return {.generation = generation,
            .step = step,
            .loss = 2.0 / static_cast<double>(step),
            .tokens = 100,
            .step_time_s = 0.5};
  }

  std::string folder_;
};

// Goal: a disk that is full loses records and nothing else: it is said, later
// records are whole lines, and what must be durable has its reserve. Method:
// events that end in a device that is always full.
TEST_F(RunOutputTest, GoesOnWhenTheDiskIsFull) {
  std::filesystem::create_symlink("/dev/full", folder_ + "/events.jsonl");
  auto output = RunOutput::Open(folder_, 1.0);
  ASSERT_TRUE(output.ok()) << output.status();
  EXPECT_TRUE((*output)->TakeLoss().ok());
  (*output)->Event({.event = "started"});
  const absl::Status loss = (*output)->TakeLoss();
  EXPECT_FALSE(loss.ok());
  EXPECT_NE(loss.message().find("events.jsonl"), std::string::npos) << loss;
  EXPECT_TRUE((*output)->TakeLoss().ok());
  EXPECT_TRUE((*output)->Step(Record(1, 1)));
  // There is space again.
  std::filesystem::remove(folder_ + "/events.jsonl");
  (*output)->Event({.event = "lost again"});  // To the file that is gone.
  EXPECT_FALSE((*output)->TakeLoss().ok());
  (*output)->Event({.event = "training"});
  EXPECT_TRUE((*output)->TakeLoss().ok());
  const auto events = ReadFile(folder_ + "/events.jsonl");
  ASSERT_TRUE(events.ok());
  EXPECT_EQ(std::count(events->begin(), events->end(), '\n'), 2);
  EXPECT_NE(events->find("{\"time_s\""), std::string::npos);
  EXPECT_TRUE((*output)->FreeReserve());
  EXPECT_FALSE((*output)->FreeReserve());
}

// Goal: what is reported twice, also to a restarted coordinator, is written
// once; a new generation repeats steps. Method: report, reopen, report again.
TEST_F(RunOutputTest, WritesEachStepOnce) {
  {
    auto output = RunOutput::Open(folder_, 1.0);
    ASSERT_TRUE(output.ok()) << output.status();
    EXPECT_TRUE((*output)->Step(Record(1, 1)));
    EXPECT_TRUE((*output)->Step(Record(1, 2)));
    EXPECT_FALSE((*output)->Step(Record(1, 2)));
    (*output)->AddRankStep(Rank{1}, 1, 1, 1, {.compute_s = 2}, 0);
    EXPECT_FALSE((*output)->AddRankStep(Rank{1}, 1, 1, 1, {.compute_s = 2}, 0));
    ASSERT_TRUE((*output)->WriteTime().ok());
  }
  auto output = RunOutput::Open(folder_, 1.0);
  ASSERT_TRUE(output.ok()) << output.status();
  EXPECT_EQ((*output)->last_loss(), 1.0);
  EXPECT_FALSE((*output)->Step(Record(1, 2)));
  EXPECT_TRUE((*output)->Step(Record(1, 3)));
  EXPECT_TRUE((*output)->Step(Record(2, 2)));
  EXPECT_EQ((*output)->MedianStepTime(), 0.5);
  EXPECT_EQ((*output)->TimeInOneLine(), "compute 100 %");
  const auto metrics = ReadFile(folder_ + "/metrics.jsonl");
  ASSERT_TRUE(metrics.ok());
  EXPECT_EQ(std::count(metrics->begin(), metrics->end(), '\n'), 4);
}

// Goal: the end of another host's log is kept once, though an agent that
// reconnects sends it again, also to a restarted coordinator. Method: the same
// text twice, again after a restart, then that of a later process.
TEST_F(RunOutputTest, AddsTheEndOfALogOnce) {
  std::filesystem::create_directories(folder_ + "/logs");
  for (int i = 0; i < 2; ++i) {
    auto output = RunOutput::Open(folder_, 1.0);
    ASSERT_TRUE(output.ok()) << output.status();
    (*output)->AddToLog(WorkerIdx{3}, "The end:\nkilled");
    (*output)->AddToLog(WorkerIdx{3}, "The end:\nkilled");
    (*output)->AddToLog(WorkerIdx{3}, "");
  }
  auto output = RunOutput::Open(folder_, 1.0);
  (*output)->AddToLog(WorkerIdx{3}, "The end:\nkilled again");
  EXPECT_EQ(*ReadFile(folder_ + "/logs/worker-0003.log"),
            "The end:\nkilled\nThe end:\nkilled again\n");
}

// Goal: the verdict has the documented keys, null where there is nothing.
TEST_F(RunOutputTest, WritesTheVerdict) {
  auto output = RunOutput::Open(folder_, 1.0);
  ASSERT_TRUE(output.ok());
  ASSERT_TRUE(
      (*output)->WriteResult({.status = "failed", .reason = "why"}).ok());
  const auto json =
      nlohmann::json::parse(ReadFile(folder_ + "/result.json").value());
  EXPECT_EQ(json["status"], "failed");
  EXPECT_EQ(json["reason"], "why");
  EXPECT_TRUE(json["final_loss"].is_null());
  EXPECT_TRUE(json["parameter_hash"].is_null());
  EXPECT_TRUE(json["device_bytes"].is_null());
}

// Goal: elsewhere than on a terminal, a line for each tenth of the steps and
// the last; on one, a line drawn over and over. Method: count.
TEST(ProgressTest, IsQuietAwayFromATerminal) {
  for (bool interactive : {false, true}) {
    std::ostringstream out;
    Progress progress({.interactive = interactive,
                       .num_steps = 100,
                       .predicted_step_time_s = 0.5},
                      out);
    for (int64_t step = 1; step <= 100; ++step) {
      progress.Step(
          {.step = step, .loss = 1.5, .tokens_per_s = 1000, .step_time_s = 1.0},
          absl::UnixEpoch() + absl::Seconds(step));
    }
    const std::string text = out.str();
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), interactive ? 0 : 11);
    EXPECT_EQ(std::count(text.begin(), text.end(), '\r'),
              interactive ? 100 : 0);
    EXPECT_NE(text.find("50 % of predicted speed"), std::string::npos);
  }
}

}  // namespace
}  // namespace millrace
