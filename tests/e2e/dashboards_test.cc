#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "tests/e2e/job_process.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// The files that one run leaves for those who watch it; every test looks at
// them.
class DashboardsTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new JobFolder("dashboards");
    // Held out in name only, which does not matter here.
    job_ = WriteTinyJob(
        *folder_,
        {.num_steps = 20,
         .layout = "{pipeline: 2, micro_batch: 2}",
         .extra = absl::StrCat(
             "evaluation:\n  interval_steps: 10\n  max_sequences: 21\n"
             "  sets: {held_out: [tests/data/text/*.txt]}\n"
             "metrics:\n  tensorboard: true\n  mlflow: ",
             folder_->path, "/mlruns\n  textfile: ", folder_->path,
             "/tiny.prom\n")});
    JobProcess process(*folder_, RunCommand(job_));
    exit_code_ = process.Wait();
    output_ = process.Output();
    std::error_code error;
    run_ =
        std::filesystem::canonical(folder_->path + "/runs/tiny-latest", error)
            .string();
    metrics_ = ReadLines(*folder_, "metrics.jsonl");
  }
  static void TearDownTestSuite() { delete folder_; }
  void SetUp() override {
    ASSERT_EQ(exit_code_, 0) << output_;
    ASSERT_EQ(metrics_.size(), 20u);
  }

  static JobFolder* folder_;
  static std::string job_, run_, output_;
  static int exit_code_;
  static std::vector<nlohmann::json> metrics_;
};
JobFolder* DashboardsTest::folder_ = nullptr;
std::string DashboardsTest::job_, DashboardsTest::run_, DashboardsTest::output_;
int DashboardsTest::exit_code_ = -1;
std::vector<nlohmann::json> DashboardsTest::metrics_;

// Goal: a job that asks for dashboards' files leaves all of them, with the last
// step in each. Method: one run; tests/coordinator/metrics reads the formats.
TEST_F(DashboardsTest, FeedsThemAll) {
  uint64_t event_bytes = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(run_ + "/tensorboard")) {
    event_bytes += entry.file_size();
  }
  EXPECT_GT(event_bytes, 20u * 100u);
  const std::string prometheus =
      ReadFile(folder_->path + "/tiny.prom").value_or("");
  EXPECT_THAT(prometheus, HasSubstr("\nmillrace_step{run=\"tiny-"));
  EXPECT_THAT(prometheus, HasSubstr("millrace_evaluation_loss{run=\"tiny-"));
  EXPECT_THAT(prometheus, HasSubstr("event=\"checkpoint_committed\"} 2\n"));
  std::string mlflow;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(
           folder_->path + "/mlruns")) {
    const std::string path = entry.path().string();
    if (path.ends_with("/metrics/evaluation/held_out/perplexity")) {
      mlflow = ReadFile(path).value_or("");
    }
  }
  EXPECT_EQ(std::count(mlflow.begin(), mlflow.end(), '\n'), 2);
  EXPECT_THAT(mlflow, HasSubstr(" 10\n"));
  EXPECT_THAT(mlflow, testing::EndsWith(" 20\n"));
  EXPECT_EQ(output_.find("metrics: "), std::string::npos) << output_;
}

// Goal: the loss of a set that two stages evaluated while training is that of
// the checkpoint on one device. Method: score the last checkpoint; before any
// step the loss is that of even guesses.
TEST_F(DashboardsTest, ScoresWhatTrainingEvaluated) {
  EXPECT_FALSE(metrics_[8].contains("evaluation"));
  const double trained = metrics_[19]["evaluation"]["held_out"];
  EXPECT_LT(trained, metrics_[9]["evaluation"]["held_out"].get<double>());
  EXPECT_THAT(output_, HasSubstr("evaluation after step 20: held_out loss "));
  const auto score = [&](const std::vector<std::string>& arguments) {
    std::vector<std::string> command = {MILLRACE_BINARY, "score", job_};
    command.insert(command.end(), arguments.begin(), arguments.end());
    JobProcess process(*folder_, command);
    EXPECT_EQ(process.Wait(), 0) << process.Output();
    return process.Output();
  };
  const nlohmann::json found = nlohmann::json::parse(
      score({"--json", "--checkpoint", run_ + "/checkpoints/step-00000020"}));
  EXPECT_EQ(found["sets"]["held_out"]["sequences"], 21);
  EXPECT_NEAR(found["sets"]["held_out"]["loss"].get<double>(), trained,
              2e-5 * trained);
  const nlohmann::json untrained = nlohmann::json::parse(score({"--json"}));
  EXPECT_NEAR(untrained["sets"]["held_out"]["loss"].get<double>(),
              std::log(288.0), 0.05);
}

// Goal: questions are answered by log-probability, and a bad record is named.
// Method: a sum's end against noise; then a record whose answer is not there.
TEST_F(DashboardsTest, AnswersQuestions) {
  const std::string path = folder_->path + "/questions.jsonl";
  std::ofstream questions(path);
  for (int i = 0; i < 8; ++i) {
    questions << R"({"context": "two plus one is", "choices": [" %zq#&~^", )"
              << R"(" three."], "answer": 1})"
              << "\n\n";
  }
  questions.close();
  const std::vector<std::string> command = {MILLRACE_BINARY,
                                            "score",
                                            job_,
                                            "--checkpoint",
                                            run_ + "/checkpoints/step-00000020",
                                            "--choices",
                                            path,
                                            "--json"};
  {
    JobProcess process(*folder_, command);
    ASSERT_EQ(process.Wait(), 0) << process.Output();
    const nlohmann::json found = nlohmann::json::parse(process.Output());
    const nlohmann::json& scores = found["choices"][path];
    EXPECT_EQ(scores["records"], 8);
    EXPECT_EQ(scores["accuracy"], 1.0);
    EXPECT_EQ(scores["accuracy_per_token"], 1.0);
    EXPECT_EQ(scores["chance"], 0.5);
  }
  std::ofstream(path, std::ios::app)
      << R"({"context": "a", "choices": ["b", "c"], "answer": 2})"
      << "\n";
  JobProcess process(*folder_, command);
  EXPECT_EQ(process.Wait(), 2);
  EXPECT_THAT(process.Output(),
              HasSubstr("questions.jsonl:17: expected \"answer\" with an index "
                        "from 0 to 1"));
}

// Goal: a run that is over is printed once where there is no terminal. Method:
// watch it through a file.
TEST_F(DashboardsTest, WatchesARunThatIsOver) {
  JobProcess process(*folder_, {MILLRACE_BINARY, "watch", run_});
  EXPECT_EQ(process.Wait(), 0) << process.Output();
  EXPECT_THAT(process.Output(), HasSubstr("  finished\n"));
  EXPECT_THAT(process.Output(), HasSubstr("100 %  step 20 of 20"));
  EXPECT_THAT(process.Output(), HasSubstr("\nevaluation  held_out: loss "));
  EXPECT_THAT(process.Output(), HasSubstr("\nrank 1      stage 1: "));
  EXPECT_THAT(process.Output(), Not(HasSubstr("\x1b")));
  JobProcess absent(*folder_, {MILLRACE_BINARY, "watch", run_ + "/absent"});
  EXPECT_EQ(absent.Wait(), 2) << absent.Output();
}

}  // namespace
}  // namespace millrace
