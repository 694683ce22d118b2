#include "coordinator/report/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/files.h"
#include "coordinator/report/report_data.h"
#include "coordinator/report/report_trace.h"
#include "nlohmann/json.hpp"
#include "planner/simulate/timeline.h"
#include "tests/coordinator/synthetic_run.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

class ReportTest : public ::testing::Test {
 protected:
  ReportTest()
      : run_((std::filesystem::path(::testing::TempDir()) /
              ("report_test." + std::to_string(getpid())))
                 .string()) {
    std::filesystem::remove_all(run_);
    WriteSyntheticRun(run_);
  }
  ~ReportTest() override { std::filesystem::remove_all(run_); }

  void Replace(const std::string& file, const std::string& content) {
    ASSERT_TRUE(WriteFileAtomically(run_ + "/" + file, content).ok());
  }

  Json Collect() {
    const absl::StatusOr<Json> data = CollectReportData(run_);
    EXPECT_TRUE(data.ok()) << data.status();
    return data.ok() ? *data : Json();
  }

  // Why `key` is missing from `data`, or "" if it is there.
  static std::string WhyMissing(const Json& data, const std::string& key) {
    for (const Json& item : data["missing"]) {
      if (item["key"] == key) return item["reason"];
    }
    return "";
  }

  std::string run_;
};

// Goal: every file of a whole run is understood. Method: nothing is missing,
// and the figures are those that the synthetic run was made with.
TEST_F(ReportTest, ReadsAWholeRun) {
  const Json data = Collect();
  EXPECT_THAT(data["missing"], ::testing::IsEmpty()) << data["missing"].dump(1);
  EXPECT_EQ(data["job"]["vocab_size"], 512);
  EXPECT_EQ(data["machine"]["description"], "a machine that does not exist");
  EXPECT_EQ(data["measured"]["ranks"].size(), 4u);
  EXPECT_EQ(data["predicted"]["ranks"].size(), 2u);
  EXPECT_EQ(data["summary"]["status"], "finished");
  EXPECT_EQ(data["summary"]["num_steps"], 60);
  EXPECT_EQ(data["summary"]["num_recoveries"], 1);
  EXPECT_NEAR(data["summary"]["measured_over_predicted"], 0.05 / 0.046, 0.05);
}

// Goal: every instruction of a timeline has a name, also the last. Method: the
// ids of the events lie within the Program that was read back from its text.
TEST_F(ReportTest, NamesEveryInstructionOfTheTimelines) {
  const Json data = Collect();
  for (const Json& rank : data["measured"]["ranks"]) {
    const Json& program = data["programs"][rank["stage"].dump()];
    EXPECT_EQ(rank["events"].size(), program["instructions"].size());
    for (const Json& instruction : program["instructions"]) {
      EXPECT_FALSE(instruction[3].get<std::string>().empty());
    }
  }
}

// Goal: of a step that ran again after a recovery the last run counts, and all
// ranks' shares of the time make one.
TEST_F(ReportTest, CountsRepeatedStepsOnceAndAllOfTheTime) {
  const Json data = Collect();
  EXPECT_EQ(data["steps"]["step"].size(), 60u);
  EXPECT_EQ(data["steps"]["num_repeated"], 5);
  EXPECT_EQ(data["steps"]["generation"][29], 1);
  EXPECT_EQ(data["steps"]["generation"][30], 2);
  double sum = 0;
  for (const Json& share : data["summary"]["shares"]) {
    sum += share["share"].get<double>();
  }
  EXPECT_NEAR(sum, 1, 1e-12);
}

// Goal: a long run is thinned, but keeps its ends and all validation points.
TEST_F(ReportTest, ThinsLongRuns) {
  std::string metrics;
  for (int step = 1; step <= 10001; ++step) {
    metrics += "{\"step\":" + std::to_string(step) + ",\"loss\":2" +
               (step % 999 == 0 ? ",\"validation_loss\":3" : "") + "}\n";
  }
  Replace("metrics.jsonl", metrics);
  const Json steps = Collect()["steps"];
  EXPECT_EQ(steps["num_steps"], 10001);
  EXPECT_LE(steps["step"].size(), 2012u);
  EXPECT_EQ(steps["step"].front(), 1);
  EXPECT_EQ(steps["step"].back(), 10001);
  int num_validations = 0;
  for (const Json& loss : steps["validation_loss"]) {
    num_validations += loss.is_number();
  }
  EXPECT_EQ(num_validations, 10);
}

// Goal: the losses of held-out sets are drawn from the steps that evaluated
// them, also where a run is thinned, and the newest is the summary's.
TEST_F(ReportTest, KeepsEveryEvaluation) {
  std::string metrics;
  for (int step = 1; step <= 10000; ++step) {
    metrics +=
        "{\"step\":" + std::to_string(step) + ",\"loss\":2" +
        (step % 997 == 0
             ? ",\"evaluation\":{\"code\":" + std::to_string(10000 - step) +
                   (step > 5000 ? ",\"prose\":1.5}" : "}")
             : "") +
        "}\n";
  }
  Replace("metrics.jsonl", metrics);
  const Json data = Collect();
  const Json& sets = data["steps"]["evaluation"];
  ASSERT_EQ(sets["code"].size(), 10u);
  EXPECT_EQ(sets["code"][0], Json({997, 9003}));
  EXPECT_EQ(sets["prose"].size(), 5u);
  EXPECT_EQ(data["summary"]["evaluation"],
            Json({{"code", 30}, {"prose", 1.5}}));
}

// Goal: a run killed while it wrote leaves a torn last line, which is passed
// over; damage elsewhere is named with its line.
TEST_F(ReportTest, ToleratesATornLastLineOnly) {
  Replace("metrics.jsonl", "{\"step\":1,\"loss\":2}\n{\"step\":2,\"lo");
  EXPECT_EQ(Collect()["steps"]["step"].size(), 1u);
  Replace("metrics.jsonl", "{\"step\":1,\"lo\n{\"step\":2,\"loss\":2}\n");
  EXPECT_THAT(WhyMissing(Collect(), "steps"), HasSubstr("metrics.jsonl:1:"));
}

// Goal: what is absent or damaged is said, and the rest is still shown. Method:
// remove or damage each file in turn.
TEST_F(ReportTest, SaysWhatIsMissing) {
  std::filesystem::remove(run_ + "/time.json");
  std::filesystem::remove_all(run_ + "/programs");
  Replace("timelines/measured.json", "{\"step_time_s\":");
  Replace("plan.json", "[]");
  Replace("job.yaml", "name: 3x\nmodel: 7\n");
  const Json data = Collect();
  EXPECT_THAT(WhyMissing(data, "time"), HasSubstr("time.json"));
  EXPECT_THAT(WhyMissing(data, "programs"), HasSubstr("stage-0.txt"));
  EXPECT_THAT(WhyMissing(data, "measured"), Not(::testing::IsEmpty()));
  EXPECT_THAT(WhyMissing(data, "plan"), HasSubstr("one JSON object"));
  EXPECT_THAT(WhyMissing(data, "job"), HasSubstr("job.yaml"));
  EXPECT_TRUE(data.contains("steps"));
  EXPECT_TRUE(WriteReport(run_).ok());
}

// Goal: documents that nest deeper than any of a run's are a missing part of
// the page, not the end of the process. Method: each JSON file nested 100,000
// deep in turn, in one way and the other.
TEST_F(ReportTest, SaysWhichFileNestsTooDeep) {
  for (const auto& [file, key] : {std::pair{"plan.json", "plan"},
                                  {"result.json", "result"},
                                  {"time.json", "time"},
                                  {"timelines/measured.json", "measured"}}) {
    for (const std::string open : {"[", "{\"a\":"}) {
      std::string text = "{\"status\": ";
      for (int i = 0; i < 100'000; ++i) text += open;
      Replace(file, text);
      const Json data = Collect();
      EXPECT_THAT(WhyMissing(data, key), HasSubstr("nested deeper")) << file;
      EXPECT_TRUE(WriteReport(run_).ok()) << file;
    }
  }
}

// Goal: files that are none leave a part of the page out; the report never
// waits. Method: a pipe, a folder, a circle of links, 8 TiB of holes.
TEST_F(ReportTest, SaysWhichFileIsNone) {
  for (const char* file :
       {"plan.json", "events.jsonl", "metrics.jsonl", "job.yaml"}) {
    std::filesystem::remove(run_ + "/" + file);
  }
  ASSERT_EQ(mkfifo((run_ + "/plan.json").c_str(), 0600), 0);
  std::filesystem::create_directory(run_ + "/events.jsonl");
  std::filesystem::create_symlink("job.yaml", run_ + "/job.yaml");
  Replace("metrics.jsonl", "");
  std::filesystem::resize_file(run_ + "/metrics.jsonl", int64_t{8} << 40);
  const Json data = Collect();
  EXPECT_THAT(WhyMissing(data, "plan"), HasSubstr("is a pipe"));
  EXPECT_THAT(WhyMissing(data, "events"), HasSubstr("is a folder"));
  EXPECT_THAT(WhyMissing(data, "job"), HasSubstr("symbolic links"));
  EXPECT_THAT(WhyMissing(data, "steps"), HasSubstr("were expected"));
}

// Goal: the page needs no other file and nothing in a run's files can become
// part of its code.
TEST_F(ReportTest, WritesOneSelfContainedPage) {
  ASSERT_TRUE(WriteReport(run_).ok());
  const absl::StatusOr<std::string> page = ReadFile(ReportPath(run_));
  ASSERT_TRUE(page.ok()) << page.status();
  EXPECT_THAT(*page, Not(HasSubstr("@REPORT_")));
  EXPECT_THAT(*page, Not(HasSubstr("</script><b>")));
  EXPECT_THAT(*page, Not(HasSubstr(" src=")));
  EXPECT_THAT(*page, Not(HasSubstr("@import")));
}

// Goal: a folder that is not a run is refused with the reason.
TEST_F(ReportTest, RefusesOtherFolders) {
  const absl::Status absent = WriteReport(run_ + "/nowhere");
  EXPECT_TRUE(absl::IsNotFound(absent)) << absent;
  const absl::Status other = WriteReport(run_ + "/timelines");
  EXPECT_TRUE(absl::IsInvalidArgument(other)) << other;
  EXPECT_THAT(std::string(other.message()), HasSubstr("not a run directory"));
}

// Goal: the command line's figures are the page's. Method: parse the summary.
TEST_F(ReportTest, SummarizesInJsonAndText) {
  const absl::StatusOr<RunSummary> summary = SummarizeRun(run_);
  ASSERT_TRUE(summary.ok()) << summary.status();
  const Json json = Json::parse(summary->json);
  EXPECT_EQ(json["report"], ReportPath(run_));
  EXPECT_EQ(json["status"], "finished");
  EXPECT_THAT(summary->text, HasSubstr("finished after 60 steps"));
  EXPECT_THAT(summary->text, HasSubstr("predicted 46.0 ms"));
}

// Goal: a run's steps can be looked at in Perfetto: every instruction of every
// rank, measured beside predicted. Method: count slices against the timelines,
// follow one; then without the measured step, without Programs, without both.
TEST_F(ReportTest, WritesATraceOfItsSteps) {
  const std::string path = run_ + "/step.perfetto.json";
  ASSERT_EQ(WriteRunTrace(run_, path), absl::OkStatus());
  const auto slices = [&] {
    const Json trace = Json::parse(*ReadFile(path));
    std::vector<Json> found;
    for (const Json& event : trace["traceEvents"]) {
      if (event["ph"] == "X") found.push_back(event);
    }
    return found;
  };
  const auto timeline = [&](const char* name) {
    return *TimelineFromJson(*ReadFile(run_ + "/timelines/" + name + ".json"));
  };
  size_t num_events = 0;
  for (const char* name : {"measured", "predicted"}) {
    for (const RankTimeline& rank : timeline(name).ranks) {
      num_events += rank.events.size();
    }
  }
  const std::vector<Json> all = slices();
  EXPECT_EQ(all.size(), num_events);
  const RankTimeline rank = timeline("measured").ranks[0];
  EXPECT_EQ(all[0]["pid"], 2 * ToInt(rank.rank));
  EXPECT_NEAR(all[0]["ts"], 1e6 * rank.events[0].start_s, 1e-3);
  EXPECT_NEAR(all[0]["dur"],
              1e6 * (rank.events[0].end_s - rank.events[0].start_s), 1e-3);
  EXPECT_FALSE(all[0]["name"].get<std::string>().empty());

  std::filesystem::remove(run_ + "/timelines/measured.json");
  ASSERT_EQ(WriteRunTrace(run_, path), absl::OkStatus());
  EXPECT_LT(slices().size(), num_events);
  std::filesystem::remove_all(run_ + "/programs");
  EXPECT_FALSE(WriteRunTrace(run_, path).ok());
  std::filesystem::remove(run_ + "/timelines/predicted.json");
  EXPECT_TRUE(absl::IsNotFound(WriteRunTrace(run_, path)));
}

// Goal: a plan gives a page before anything ran, with its own sections alone,
// and as closed as a run's. Method: the data that the page holds.
TEST(PlanPageTest, HoldsThePredictedStep) {
  const SyntheticPlan made = MakeSyntheticPlan();
  const absl::StatusOr<std::string> page = PlanPage(
      made.job, made.profile, made.plan, made.timeline, made.program_texts);
  ASSERT_TRUE(page.ok()) << page.status();
  EXPECT_THAT(*page, Not(HasSubstr("@REPORT_")));
  EXPECT_THAT(*page, Not(HasSubstr(" src=")));
  const std::string opening = "type=\"application/json\">";
  const size_t begin = page->find(opening) + opening.size();
  const Json data =
      Json::parse(page->substr(begin, page->find("</script>", begin) - begin));
  EXPECT_EQ(data["sections"], Json({"timeline", "plan", "job"}));
  EXPECT_EQ(data["summary"]["status"], "planned");
  EXPECT_EQ(data["predicted"]["ranks"].size(), 2u);
  EXPECT_EQ(data["programs"]["1"]["instructions"].size(),
            data["predicted"]["ranks"][1]["events"].size());
  EXPECT_EQ(data["plan"]["alternatives"].size(), 2u);
  EXPECT_FALSE(data.contains("measured"));
}

}  // namespace
}  // namespace millrace
