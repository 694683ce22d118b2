// Calibration: what a few measured runs say of others that are like them.
//
// The error log(measured / predicted) of a run is taken for a Gaussian process
// (Rasmussen and Williams, 2006, chapter 2): a sum of parts that runs share in
// so far as they are alike. Runs on one machine share the errors of its
// profile's constants, each weighing as much as the step time depends on it;
// runs of one framework, software version, model, precision or layout share an
// offset each. How far each part may be off is fixed before any run is seen
// (planner/learn/gaussian_process.h and the offsets of
// calibrate_predictions.cc), so that one run moves only what it has evidence
// for. A group whose runs agree that it is further off than that keeps the
// difference to itself: its offset widens, and others are not moved.

#ifndef MILLRACE_PLANNER_EVALUATE_CALIBRATE_PREDICTIONS_H_
#define MILLRACE_PLANNER_EVALUATE_CALIBRATE_PREDICTIONS_H_

#include <map>
#include <string>
#include <vector>

#include "planner/evaluate/evaluate.h"

namespace millrace {

// What calibration knows of a run.
struct CalibrationPoint {
  std::string id;
  std::string machine;    // Name of the profile; other machines tell nothing.
  std::string framework;  // PublishedRun::group.
  std::string software;   // SoftwareOf the run.
  std::string model;
  std::string precision;  // The recipe, as the run names it.
  std::string layout;     // Its axes but data, micro-batch, recompute, ZeRO.
  // Standard deviation of log(step time) that each constant of the machine's
  // profile accounts for, signed; in one order for all points of a machine.
  std::vector<double> constant_deviations;
  // And that of this run alone, for the time that the host takes to launch,
  // which scatters from run to run.
  double host_deviation = 0;
  double log_ratio = 0;  // log(measured / predicted); of known runs.
};
// `prediction` must be supported. log_ratio is 0 where nothing was measured.
CalibrationPoint PointOf(const RunPrediction& prediction);

// Runs that calibrate one another best: "framework, software, machine, model,
// precision".
std::string CalibrationGroup(const CalibrationPoint& point);

class Calibration {
 public:
  // Among several points that are alike, those that the others contradict count
  // less (SolveRobustly).
  explicit Calibration(std::vector<CalibrationPoint> points);

  // log(measured / predicted) to expect of a run that was not measured. 0 where
  // no point is like it.
  double LogCorrection(const CalibrationPoint& point) const;

 private:
  double Covariance(const CalibrationPoint& a, const CalibrationPoint& b) const;
  double GroupVariance(const std::string& group) const;
  void Solve();

  std::vector<CalibrationPoint> points_;
  std::map<std::string, double> group_variances_;
  std::vector<double> weights_;  // (covariance + noise)^-1 log_ratio.
};

// Corrects step_time_s of `predictions` by the runs among them whose ids are in
// `calibration_ids`, marks those, and marks all runs of their groups as
// calibrated. Ids of unsupported runs and of runs that nothing was measured of
// do nothing. All need sensitivities.
void Calibrate(const std::vector<std::string>& calibration_ids,
               std::vector<RunPrediction>* predictions);

// `count` runs of each CalibrationGroup, never all of it: first that on fewest
// devices, then that on most, then those between, evenly spaced. Runs on
// equally many devices are ordered by predicted time, fastest first, then by
// id.
std::vector<std::string> ChooseCalibrationRuns(
    const std::vector<RunPrediction>& predictions, int count);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_EVALUATE_CALIBRATE_PREDICTIONS_H_
