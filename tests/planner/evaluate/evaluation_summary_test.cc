#include "planner/evaluate/evaluation_summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/statistics.h"
#include "nlohmann/json.hpp"
#include "planner/evaluate/evaluation_report.h"
#include "planner/profile/prediction_interval.h"
#include "tests/planner/evaluate/evaluation_testing.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr double kGiB = 1024.0 * 1024 * 1024;

// Goal: quantiles and rank correlation are the textbook's. Method: by hand.
TEST(EvaluationSummaryTest, StatisticsAreTheTextbooks) {
  EXPECT_DOUBLE_EQ(Quantile({3, 1, 2}, 0.5), 2);
  EXPECT_DOUBLE_EQ(Quantile({1, 2, 3, 4}, 0.5), 2.5);
  EXPECT_DOUBLE_EQ(Quantile({0, 10}, 0.95), 9.5);
  EXPECT_DOUBLE_EQ(Quantile({7}, 0.95), 7);
  EXPECT_DOUBLE_EQ(*Spearman({1, 2, 3}, {10, 20, 90}), 1);
  EXPECT_DOUBLE_EQ(*Spearman({1, 2, 3}, {90, 20, 10}), -1);
  // 1 - 6 (1 + 1) / (4 (16 - 1)).
  EXPECT_DOUBLE_EQ(*Spearman({1, 2, 3, 4}, {1, 3, 2, 4}), 0.8);
  // The tied pair shares rank 2.5 of (1, 2.5, 2.5, 4): 4.5 / sqrt(4.5 x 5).
  EXPECT_NEAR(*Spearman({1, 5, 5, 9}, {1, 2, 3, 4}), 0.9486832980505138, 1e-12);
  EXPECT_FALSE(Spearman({1, 2}, {1, 2}).has_value());
  EXPECT_FALSE(Spearman({1, 1, 1}, {1, 2, 3}).has_value());
}

std::vector<RunPrediction> HandMade() {
  std::vector<RunPrediction> predictions = {
      MakePrediction({.id = "a", .predicted = 1.1, .measured = 1.0}),
      MakePrediction({.id = "b", .predicted = 1.6, .measured = 2.0}),
      MakePrediction({.id = "c", .predicted = 4.0, .measured = 4.0}),
      MakePrediction({.id = "d",
                      .group = "h",
                      .predicted = 3,
                      .measured = 2,
                      .num_gpus = 16}),
      MakeUnsupported("e")};
  predictions[0].memory_bytes = 11 * kGiB;
  predictions[0].run.memory = 10;
  predictions[0].run.memory_unit = std::string("GiB");
  predictions[3].setup.layout.gemm_format = GemmFormat::kFloat8;
  predictions[3].setup.model.moe.num_experts = 8;
  return predictions;
}

const ErrorSummary& FindSummary(const std::vector<ErrorSummary>& summaries,
                                const std::string& name) {
  for (const ErrorSummary& errors : summaries) {
    if (errors.name == name) return errors;
  }
  ADD_FAILURE() << "no " << name;
  return summaries.front();
}

// Goal: errors are counted where they belong. Method: five runs by hand with
// errors +10 %, -20 %, 0, +50 % and one unsupported.
TEST(EvaluationSummaryTest, SortsErrorsByKind) {
  const EvaluationSummary summary = Summarize(HandMade());
  EXPECT_EQ(summary.all.count, 5);
  EXPECT_EQ(summary.all.supported, 4);
  EXPECT_EQ(summary.all.compared, 4);
  EXPECT_NEAR(summary.all.median, 0.15, 1e-12);
  EXPECT_NEAR(summary.all.p95, 0.2 + 0.85 * 0.3, 1e-12);
  EXPECT_NEAR(summary.all.mean_signed, 0.1, 1e-12);
  EXPECT_EQ(FindSummary(summary.by_group, "g").count, 4);
  EXPECT_NEAR(FindSummary(summary.by_group, "g").median, 0.1, 1e-12);
  EXPECT_NEAR(FindSummary(summary.by_group, "h").median, 0.5, 1e-12);
  EXPECT_EQ(FindSummary(summary.by_quality, "B").supported, 0);
  EXPECT_EQ(FindSummary(summary.by_class, "dense A/A+").compared, 3);
  EXPECT_EQ(FindSummary(summary.by_class, "experts").compared, 1);
  EXPECT_NEAR(FindSummary(summary.by_class, "fp8/fp4").median, 0.5, 1e-12);
  EXPECT_EQ(summary.num_memory, 1);
  EXPECT_NEAR(summary.mean_memory_error, 0.1, 1e-12);
}

// Goal: runs of a calibration are not judged. Method: mark the worst.
TEST(EvaluationSummaryTest, LeavesCalibrationOut) {
  std::vector<RunPrediction> predictions = HandMade();
  predictions[3].is_calibration = true;
  const EvaluationSummary summary = Summarize(predictions);
  EXPECT_EQ(summary.all.supported, 4);
  EXPECT_EQ(summary.all.compared, 3);
  EXPECT_NEAR(summary.all.p95, 0.1 + 0.9 * 0.1, 1e-12);
}

// Goal: regret is what the model's first choice loses. Method: three layouts of
// which the model puts the second best first, and one run of another machine.
TEST(EvaluationSummaryTest, RegretIsOfTheModelsChoice) {
  const std::vector<RunPrediction> predictions = {
      MakePrediction({.id = "a", .predicted = 1.5, .measured = 1.0}),
      MakePrediction({.id = "b", .predicted = 1.4, .measured = 1.2}),
      MakePrediction({.id = "c", .predicted = 3.0, .measured = 5.0}),
      MakePrediction({.id = "d", .predicted = 1, .num_gpus = 16})};
  const EvaluationSummary summary = Summarize(predictions);
  ASSERT_THAT(summary.choices, SizeIs(1));
  EXPECT_EQ(summary.choices[0].count, 3);
  EXPECT_NEAR(summary.choices[0].regret, 0.2, 1e-12);
  EXPECT_NEAR(*summary.choices[0].spearman, 0.5, 1e-12);
}

// Goal: each line is an object with the promised keys, null for what is
// missing, and the last is the summary. Method: read the lines back.
TEST(EvaluationReportTest, PrintsJsonLines) {
  const std::vector<RunPrediction> predictions = HandMade();
  const std::string text =
      EvaluationToJson(predictions, Summarize(predictions));
  std::vector<nlohmann::json> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    ASSERT_NE(end, std::string::npos);
    lines.push_back(nlohmann::json::parse(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  ASSERT_THAT(lines, SizeIs(6));
  EXPECT_EQ(lines[0]["id"], "a");
  EXPECT_EQ(lines[0]["supported"], true);
  EXPECT_TRUE(lines[0]["reason"].is_null());
  EXPECT_DOUBLE_EQ(lines[0]["predicted_step_time_s"], 1.1);
  EXPECT_DOUBLE_EQ(lines[0]["measured_step_time_s"], 1.0);
  EXPECT_NEAR(lines[0]["relative_error"], 0.1, 1e-12);
  EXPECT_DOUBLE_EQ(lines[0]["predicted_memory_gib"], 11);
  EXPECT_DOUBLE_EQ(lines[0]["measured_memory_gib"], 10);
  EXPECT_TRUE(lines[1]["measured_memory_gib"].is_null());
  EXPECT_EQ(lines[4]["supported"], false);
  EXPECT_EQ(lines[4]["reason"], "hidden is not stated");
  EXPECT_TRUE(lines[4]["predicted_step_time_s"].is_null());
  EXPECT_TRUE(lines[4]["relative_error"].is_null());
  const nlohmann::json& summary = lines[5]["summary"];
  EXPECT_EQ(summary["count"], 5);
  EXPECT_NEAR(summary["median"], 0.15, 1e-12);
  EXPECT_NEAR(summary["by_group"]["g"]["median"], 0.1, 1e-12);
  EXPECT_EQ(summary["memory"]["count"], 1);
}

// Goal: people see each run's error and why a run is missing. Method: search
// the table.
TEST(EvaluationReportTest, PrintsATable) {
  const std::vector<RunPrediction> predictions = HandMade();
  const std::string text =
      EvaluationToText(predictions, Summarize(predictions));
  EXPECT_THAT(text, HasSubstr("+10.0%"));
  EXPECT_THAT(text, HasSubstr("-20.0%"));
  EXPECT_THAT(text, HasSubstr("unsupported: hidden is not stated"));
  EXPECT_THAT(text, HasSubstr("Memory of 1 runs: mean error 10.0%"));
}

// Goal: each profile's error is that of its own good, dense, measured runs.
// Method: two profiles, and one run of every kind that must not count.
TEST(ProfileErrorsTest, CountsGoodDenseRuns) {
  std::vector<RunPrediction> predictions = {
      MakePrediction({.id = "a", .predicted = 1, .measured = 1.1}),
      MakePrediction({.id = "b", .predicted = 2, .measured = 1.9}),
      MakePrediction({.id = "c", .predicted = 2, .measured = 2.4}),
      MakeUnsupported("d")};
  for (int i = 0; i < 4; ++i) {
    predictions.push_back(MakePrediction(
        {.id = absl::StrCat("left out ", i), .predicted = 1, .measured = 9}));
  }
  predictions[4].run.quality = std::string("B");
  predictions[5].setup.model.moe.num_experts = 8;
  predictions[6].is_calibration = true;
  predictions[7].run.step_time_s = std::nullopt;
  predictions[2].setup.profile = "other";

  const auto errors = ErrorsByProfile(predictions);
  ASSERT_EQ(errors.size(), 2u);
  const std::vector<double> ratios = {1.1, 0.95}, other = {1.2};
  const StepError expected = ErrorOfRuns(ratios, "");
  EXPECT_EQ(errors.at("machine").num_runs, 2);
  EXPECT_NEAR(errors.at("machine").low, expected.low, 1e-12);
  EXPECT_NEAR(errors.at("machine").high, expected.high, 1e-12);
  EXPECT_NEAR(errors.at("other").high, ErrorOfRuns(other, "").high, 1e-12);
}

}  // namespace
}  // namespace millrace
