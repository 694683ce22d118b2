#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/watch/run_follower.h"
#include "coordinator/watch/watch_page.h"
#include "tests/coordinator/synthetic_run.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

class WatchTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        testing::TempDir() + "/millrace-watch-" + std::to_string(getpid());
    std::filesystem::remove_all(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void Append(const std::string& name, const std::string& text) {
    std::filesystem::create_directories(folder_);
    std::ofstream(folder_ + "/" + name, std::ios::app) << text;
  }
  static std::string Page(const WatchedRun& run, const WatchLook& look = {}) {
    return absl::StrJoin(WatchLines(run, look), "\n");
  }
  static std::string StepLine(int step, double loss) {
    return absl::StrCat("{\"step\":", step, ",\"loss\":", loss,
                        ",\"step_time_s\":0.5,\"tokens_per_s\":200,"
                        "\"predicted_step_time_s\":0.4,\"generation\":1}\n");
  }

  std::string folder_;
};

// Goal: a run that is over is shown whole: how it ended, its steps, speed,
// losses, ranks and faults. Method: the made-up run, on a wide terminal.
TEST_F(WatchTest, ShowsARunThatIsOver) {
  WriteSyntheticRun(folder_);
  auto follower = RunFollower::Open(folder_);
  ASSERT_TRUE(follower.ok()) << follower.status();
  ASSERT_TRUE(follower->Refresh().ok());
  const WatchedRun& run = follower->run();
  EXPECT_TRUE(run.over);
  const std::string page = Page(run, {.width = 120, .height = 100});
  EXPECT_THAT(page, HasSubstr(absl::StrCat(run.name, "  finished")));
  EXPECT_THAT(page, HasSubstr("100 %  step 60 of 60"));
  EXPECT_THAT(page, HasSubstr("loss        3.1593, from 6.0439; validation "));
  EXPECT_THAT(page, HasSubstr("predicted 46.0 ms: 9"));
  EXPECT_THAT(page, HasSubstr("faults      1 worker died; newest checkpoint "
                              "after step 30"));
  EXPECT_THAT(page, HasSubstr("rank 3      stage 1: compute 4"));
  EXPECT_THAT(page, HasSubstr("worker_died, step 35, rank 2: signal 9"));
  EXPECT_THAT(page, Not(HasSubstr("\x1b")));
}

// Goal: what a run writes is seen as it comes, each line once and none by half.
// Method: grow the files between calls.
TEST_F(WatchTest, FollowsARunAsItGrows) {
  Append("events.jsonl", "{\"time_s\":0,\"event\":\"started\"}\n");
  auto follower = RunFollower::Open(folder_);
  ASSERT_TRUE(follower.ok()) << follower.status();
  ASSERT_TRUE(follower->Refresh().ok());
  EXPECT_EQ(follower->run().status, "starting");
  EXPECT_FALSE(follower->run().step.has_value());
  EXPECT_THAT(Page(follower->run()), HasSubstr("progress    step 0"));

  Append("events.jsonl",
         "{\"time_s\":1,\"event\":\"planned\",\"detail\":\"data 2\"}\n"
         "{\"time_s\":2,\"event\":\"training\"}\n");
  Append("metrics.jsonl", StepLine(1, 8) + "{\"step\":2,\"lo");
  ASSERT_TRUE(follower->Refresh().ok());
  EXPECT_EQ(follower->run().status, "training");
  EXPECT_EQ(follower->run().plan, "data 2");
  EXPECT_EQ(follower->run().step->step, 1);

  Append("metrics.jsonl",
         "ss\":null,\"step_time_s\":0.5,\"tokens_per_s\":200}\n");
  ASSERT_TRUE(follower->Refresh().ok());
  EXPECT_EQ(follower->run().step->step, 2);
  EXPECT_THAT(Page(follower->run()), HasSubstr("loss        not a number"));
  EXPECT_EQ(follower->run().curve, std::vector<double>({8}));

  Append("metrics.jsonl",
         "{\"step\":3,\"loss\":7,\"evaluation\":{\"held_out\":1}}\n");
  ASSERT_TRUE(follower->Refresh().ok());
  EXPECT_THAT(Page(follower->run()),
              HasSubstr("evaluation  held_out: loss 1.0000, perplexity 2.718"));

  Append("events.jsonl", "{\"time_s\":3,\"event\":\"worker_died\"}\n");
  ASSERT_TRUE(follower->Refresh().ok());
  EXPECT_EQ(follower->run().status, "recovering");
  EXPECT_EQ(follower->run().num_deaths, 1);
  EXPECT_FALSE(follower->run().over);

  Append("events.jsonl",
         "{\"event\":\"slow_rank\",\"rank\":3,\"detail\":\"computes long\"}\n");
  ASSERT_TRUE(follower->Refresh().ok());
  EXPECT_THAT(Page(follower->run()), HasSubstr("slow        rank 3 computes"));
  EXPECT_EQ(WatchJson(follower->run(), 0)["slow_ranks"][0]["rank"], 3);
  Append("events.jsonl", "{\"event\":\"rank_recovered\",\"rank\":3}\n");
  ASSERT_TRUE(follower->Refresh().ok());
  EXPECT_TRUE(follower->run().slow_ranks.empty());
}

// Seconds of a rank's compute; the rest of a second it waits for the others.
std::string RankTimeText(int rank, int stage, const std::string& host,
                         double compute_s, double data_s = 0) {
  return absl::StrCat(R"({"rank":)", rank, R"(,"stage":)", stage,
                      R"(,"host":")", host, R"(","compute_s":)", compute_s,
                      R"(,"data_s":)", data_s, R"(,"exposed_data_comm_s":)",
                      100 - compute_s - data_s, "}");
}

// Goal: the rank that others wait for is named with its host and the part that
// takes longer; ranks of another stage, whose work differs, are no measure, and
// small differences no reason. Method: four ranks on two hosts, one of which
// computes 30 % longer, then reads data for longer, then hardly longer.
TEST_F(WatchTest, NamesTheSlowestRank) {
  const auto page_of = [&](double compute_s, double data_s) {
    std::filesystem::remove_all(folder_);
    Append("events.jsonl", "{\"time_s\":0,\"event\":\"started\"}\n");
    Append("time.json",
           absl::StrCat(R"({"wall_s":100,"ranks":[)",
                        RankTimeText(0, 0, "node1", 10), ",",
                        RankTimeText(1, 0, "node1", 10), ",",
                        RankTimeText(2, 1, "node2", 50), ",",
                        RankTimeText(3, 1, "node2", compute_s, data_s), "]}"));
    auto follower = RunFollower::Open(folder_);
    EXPECT_TRUE(follower.ok() && follower->Refresh().ok());
    const nlohmann::json json = WatchJson(follower->run(), 0);
    EXPECT_EQ(json.contains("slowest"), compute_s + data_s > 53);
    return Page(follower->run(), {.width = 110});
  };
  EXPECT_THAT(page_of(65, 0),
              HasSubstr("slowest     rank 3 (node2) works 30 % longer than the "
                        "median of its stage: compute +30 %"));
  const std::string page = page_of(50, 5);
  EXPECT_THAT(page, HasSubstr("works 10 % longer than the median of its stage: "
                              "data +10 %"));
  EXPECT_THAT(page,
              HasSubstr("hosts       node1: ranks 0, 1; node2: ranks 2, 3"));
  EXPECT_THAT(page, HasSubstr("rank 2      stage 1, node2: compute 50 %"));
  EXPECT_THAT(page_of(51, 0), Not(HasSubstr("slowest")));
}

// Goal: the curve of a long run stays short and keeps both ends. Method: many
// more steps than it may hold.
TEST_F(WatchTest, ThinsTheCurve) {
  std::string lines;
  for (int step = 1; step <= 3000; ++step) {
    lines += StepLine(step, 3001 - step);
  }
  Append("events.jsonl", "{\"time_s\":0,\"event\":\"started\"}\n");
  Append("metrics.jsonl", lines);
  auto follower = RunFollower::Open(folder_);
  ASSERT_TRUE(follower.ok()) << follower.status();
  ASSERT_TRUE(follower->Refresh().ok());
  const std::vector<double>& curve = follower->run().curve;
  EXPECT_LE(curve.size(), RunFollower::kMaxCurve);
  EXPECT_GE(curve.size(), RunFollower::kMaxCurve / 2);
  EXPECT_EQ(curve.front(), 3000);
  EXPECT_LT(curve.back(), 16);
  EXPECT_TRUE(std::is_sorted(curve.rbegin(), curve.rend()));
}

// Goal: the page fits any terminal, and nothing of a file can steer it. Method:
// a small window, a silent run with an escape sequence in an event, with and
// without colours.
TEST_F(WatchTest, FitsTheTerminalAndKeepsItSafe) {
  WatchedRun run = {.name = "run"};
  run.status = "training";
  run.events = {"0 s  planned: \x1b[2J gone \xc3\xa9"};
  run.newest_unix_s = 1000;
  const std::vector<std::string> lines =
      WatchLines(run, {.width = 60, .height = 100, .now_unix_s = 1100});
  EXPECT_EQ(lines[0], "run  training, but nothing new for 1 min 40 s");
  EXPECT_EQ(lines.back(), "events      0 s  planned: ?[2J gone ?");
  EXPECT_THAT(WatchLines(run, {.width = 60, .height = 2}), SizeIs(2));
  for (const std::string& line : WatchLines(run, {.width = 12})) {
    EXPECT_LE(line.size(), 12u);
  }
  run.newest_unix_s = 0;
  EXPECT_EQ(WatchLines(run, {.colours = true})[0],
            "run  \x1b[32mtraining\x1b[0m");
  EXPECT_EQ(WatchLines(run, {})[0], "run  training");
}

// Goal: a wrong path is told from a run. Method: no folder, and an empty one.
TEST_F(WatchTest, RefusesWhatIsNoRun) {
  EXPECT_EQ(RunFollower::Open(folder_).status().code(),
            absl::StatusCode::kNotFound);
  std::filesystem::create_directories(folder_);
  const absl::Status status = RunFollower::Open(folder_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("holds neither job.yaml nor events.jsonl"));
}

}  // namespace
}  // namespace millrace
