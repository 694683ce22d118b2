#include "planner/evaluate/profile_errors.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "planner/profile/prediction_interval.h"
#include "tests/planner/evaluate/evaluation_testing.h"

namespace millrace {
namespace {

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
