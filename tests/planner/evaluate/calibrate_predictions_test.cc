#include "planner/evaluate/calibrate_predictions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "planner/learn/gaussian_process.h"
#include "tests/planner/evaluate/evaluation_testing.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A run whose time depends on compute alone where `compute` is 1, on the fabric
// alone where it is 0.
CalibrationPoint Point(const std::string& id, double compute,
                       double log_ratio) {
  CalibrationPoint point;
  point.id = id;
  point.machine = "machine";
  point.framework = "framework";
  point.software = "v1";
  point.model = "model";
  point.precision = "bf16";
  point.layout = "1";
  for (const double share : {compute, 1 - compute}) {
    point.constant_deviations.push_back(-share *
                                        DeviationOfConstant("gemm_share"));
  }
  point.log_ratio = log_ratio;
  return point;
}

// Goal: one run corrects a run like it nearly whole, a run on another machine
// not at all, and what differs in between. Method: one point that is 10 %
// slow, and others that share less and less with it.
TEST(CalibrateTest, CorrectsWhatIsAlike) {
  const Calibration calibration({Point("a", 0.8, 0.1)});
  const CalibrationPoint alike = Point("b", 0.8, 0);
  EXPECT_NEAR(calibration.LogCorrection(alike), 0.1, 0.004);
  std::vector<double> corrections;
  CalibrationPoint other = alike;
  corrections.push_back(calibration.LogCorrection(other));
  other.layout = "2";
  corrections.push_back(calibration.LogCorrection(other));
  other.precision = "fp8";
  corrections.push_back(calibration.LogCorrection(other));
  other.model = "other";
  corrections.push_back(calibration.LogCorrection(other));
  other.software = "v2";
  corrections.push_back(calibration.LogCorrection(other));
  other.framework = "other";
  corrections.push_back(calibration.LogCorrection(other));
  for (size_t i = 1; i < corrections.size(); ++i) {
    EXPECT_LT(corrections[i], corrections[i - 1]) << i;
    EXPECT_GT(corrections[i], 0) << i;
  }
  other.machine = "other";
  EXPECT_EQ(calibration.LogCorrection(other), 0);
}

// Goal: a run that waits for its host says less of others, as such times
// scatter. Method: the same run with and without; where launches are all of it,
// it is believed less than half.
TEST(CalibrateTest, BelievesRunsThatWaitForTheHostLess) {
  CalibrationPoint run = Point("a", 0.8, 0.1);
  const CalibrationPoint alike = Point("b", 0.8, 0);
  const double sure = Calibration({run}).LogCorrection(alike);
  run.host_deviation = 0.3;
  const double unsure = Calibration({run}).LogCorrection(alike);
  EXPECT_GT(unsure, 0);
  EXPECT_LT(unsure, sure / 2);
}

// Goal: two runs tell a slow fabric from slow compute. Method: a run of compute
// alone that is as predicted and one that waits for the fabric and is slow: a
// third, which waits half as much, is half as slow.
TEST(CalibrateTest, TellsConstantsApart) {
  CalibrationPoint compute = Point("a", 1, 0);
  CalibrationPoint fabric = Point("b", 0.2, 0.1);
  fabric.layout = "2";
  const Calibration calibration({compute, fabric});
  CalibrationPoint between = Point("c", 0.6, 0);
  between.layout = "3";
  EXPECT_NEAR(calibration.LogCorrection(between), 0.05, 0.015);
}

// Goal: without points nothing changes; a group far beyond what is thought
// possible is corrected, and others of its machine are not dragged along.
// Method: an error of a factor of ten in one group, and one more in another.
TEST(CalibrateTest, KeepsWildGroupsToThemselves) {
  const Calibration none({});
  EXPECT_EQ(none.LogCorrection(Point("b", 1, 0)), 0);
  CalibrationPoint wild = Point("wild", 1, std::log(10));
  wild.model = "other";
  const Calibration calibration({wild, Point("a", 1, 0.05)});
  EXPECT_NEAR(calibration.LogCorrection(wild), std::log(10), 0.02);
  EXPECT_NEAR(calibration.LogCorrection(Point("b", 1, 0)), 0.05, 0.01);
}

// Goal: a run that several like it contradict counts for less than they.
// Method: five at +5 %, one of the same at -30 %.
TEST(CalibrateTest, FollowsTheMajority) {
  std::vector<CalibrationPoint> points;
  for (int i = 0; i < 5; ++i) points.push_back(Point("a", 1, 0.05));
  points.push_back(Point("odd", 1, -0.3));
  const Calibration calibration(points);
  EXPECT_NEAR(calibration.LogCorrection(Point("b", 1, 0)), 0.05, 0.02);
}

// Goal: of two runs that contradict each other the one that the model expects
// counts, and two that agree are believed however far off. Method: one run as
// predicted and one that took 1.6 times as long; both 2.5 times.
TEST(CalibrateTest, DoubtsTheOddOneOfTwo) {
  CalibrationPoint odd = Point("odd", 1, std::log(1.6));
  odd.layout = "2";
  CalibrationPoint other = Point("c", 1, 0);
  other.layout = "3";
  const Calibration doubting({Point("a", 1, 0.01), odd});
  EXPECT_NEAR(doubting.LogCorrection(other), 0.02, 0.03);
  CalibrationPoint far = Point("a", 1, std::log(2.5));
  odd.log_ratio = std::log(2.55);
  const Calibration believing({far, odd});
  EXPECT_NEAR(believing.LogCorrection(other), std::log(2.5), 0.05);
}

// Goal: runs named as calibration are marked and correct the others. Method:
// two runs, one known.
TEST(CalibrateTest, CorrectsPredictions) {
  std::vector<RunPrediction> predictions = {
      MakePrediction({.id = "a", .predicted = 1, .measured = 1.2}),
      MakePrediction(
          {.id = "b", .predicted = 2, .measured = 2.4, .num_gpus = 16}),
      MakeUnsupported("c")};
  for (RunPrediction& prediction : predictions) {
    prediction.sensitivities = {{"gemm_share", -0.9}, {"fabric_share", -0.1}};
  }
  Calibrate({"a", "c", "absent"}, &predictions);
  EXPECT_TRUE(predictions[0].is_calibration);
  EXPECT_FALSE(predictions[1].is_calibration);
  EXPECT_TRUE(predictions[1].is_calibrated);
  EXPECT_NEAR(predictions[1].step_time_s, 2.4, 0.02);
}

// Goal: constants are known by name, since profiles list them in any order.
// Method: one profile's constants in two orders.
TEST(CalibrateTest, KnowsConstantsByName) {
  RunPrediction known = MakePrediction({.id = "a", .measured = 1.2});
  RunPrediction other = MakePrediction({.id = "b", .group = "h"});
  std::vector<double> corrected;
  for (const bool reversed : {false, true}) {
    for (RunPrediction* prediction : {&known, &other}) {
      prediction->sensitivities = {{"gemm_share", -0.6}, {"step_s", 0.4}};
      if (reversed) {
        std::swap(prediction->sensitivities[0], prediction->sensitivities[1]);
      }
    }
    std::vector<RunPrediction> predictions = {known, other};
    Calibrate({"a"}, &predictions);
    corrected.push_back(predictions[1].step_time_s);
  }
  EXPECT_GT(corrected[0], 1.01);
  EXPECT_DOUBLE_EQ(corrected[0], corrected[1]);
}

// Goal: the chosen runs are the ends and what divides the rest, and never all.
// Method: groups of one, three and five runs.
TEST(CalibrateTest, ChoosesRunsByARule) {
  auto runs = [](int n) {
    std::vector<RunPrediction> predictions;
    for (int i = 0; i < n; ++i) {
      predictions.push_back(
          MakePrediction({.id = std::string(1, static_cast<char>('a' + i)),
                          .num_gpus = 8 << i}));
    }
    return predictions;
  };
  EXPECT_THAT(ChooseCalibrationRuns(runs(1), 2), IsEmpty());
  EXPECT_THAT(ChooseCalibrationRuns(runs(3), 1), ElementsAre("a"));
  EXPECT_THAT(ChooseCalibrationRuns(runs(3), 2), ElementsAre("a", "c"));
  EXPECT_THAT(ChooseCalibrationRuns(runs(5), 3), ElementsAre("a", "c", "e"));
  EXPECT_THAT(ChooseCalibrationRuns(runs(3), 9), ElementsAre("a", "c"));
}

// Goal: robust weights reproduce values up to noise. Method: independent
// points, where the mean is covariance / (covariance + noise) x value.
TEST(CalibrateTest, SolvesByHand) {
  const RobustWeights solved = SolveRobustly({1, 0, 0, 4}, {0.5, 0.5}, 1);
  EXPECT_NEAR(solved.weights[0], 0.25, 1e-12);
  EXPECT_NEAR(solved.weights[1], 0.1, 1e-12);
  EXPECT_NEAR(solved.residuals[0], 0.25, 1e-12);
}

// Goal: beyond what noise allows a value pulls less the further off it is.
// Method: what one of ten values adds to the others' mean.
TEST(CalibrateTest, OutliersPullLess) {
  const auto mean = [](double odd) {
    std::vector<double> values(10, 0.0);
    values.back() = odd;
    const RobustWeights solved =
        SolveRobustly(std::vector<double>(100, 1.0), values, 0.01);
    return values[0] - solved.residuals[0];
  };
  EXPECT_NEAR(mean(0.1), 0.01, 0.001);
  EXPECT_LT(mean(1), mean(0.2));
  EXPECT_LT(mean(3), 0.5 * mean(1));
}

}  // namespace
}  // namespace millrace
