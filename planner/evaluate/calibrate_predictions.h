// Calibration corrects the predictions of runs by a few measured runs that are
// like them.
//
// The error log(measured / predicted) of a run is modelled as a Gaussian
// process (Rasmussen and Williams, 2006, chapter 2), a sum of parts that alike
// runs share. Runs on one machine share the errors of its profile's constants.
// Each constant weighs as much as the step time depends on it. Runs of one
// framework, software version, model, precision or layout share an offset each.
//
// The standard deviation of each part is fixed before any run is seen
// (planner/learn/gaussian_process.h and the offsets of
// calibrate_predictions.cc), so that one run moves only what it has evidence
// for. If the runs of a group agree on a larger error, the group's offset
// widens, and other groups are not moved.

#ifndef MILLRACE_PLANNER_EVALUATE_CALIBRATE_PREDICTIONS_H_
#define MILLRACE_PLANNER_EVALUATE_CALIBRATE_PREDICTIONS_H_

#include <map>
#include <string>
#include <vector>

#include "planner/evaluate/evaluate.h"

namespace millrace {

// The properties of a run that calibration compares.
struct CalibrationPoint {
  std::string id;
  std::string machine;  // Profile's name; runs on other machines tell nothing.
  std::string framework;  // PublishedRun::group.
  std::string software;   // SoftwareOf() the run.
  std::string model;
  std::string precision;  // The recipe, as the run names it.
  std::string layout;     // Axes but data, micro-batch, recompute, ZeRO.
  // Standard deviation of log(step time) due to each constant of the machine's
  // profile, signed. All points of a machine list constants in the same order.
  std::vector<double> constant_deviations;
  // Standard deviation due to the launch time of the host, which scatters from
  // run to run and which no other run shares.
  double host_deviation = 0;
  double log_ratio = 0;  // log(measured / predicted) if known.
};
// Returns the point of a run. `prediction` must be supported. log_ratio is 0 if
// nothing was measured.
CalibrationPoint PointOf(const RunPrediction& prediction);

// Names the group of runs that calibrate one another best: "framework,
// software, machine, model, precision".
std::string CalibrationGroup(const CalibrationPoint& point);

class Calibration {
 public:
  // Points that other points like them contradict count less (SolveRobustly()).
  explicit Calibration(std::vector<CalibrationPoint> points);

  // Returns the expected log(measured / predicted) of a run that was not
  // measured; 0 if no point is like it.
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
// `calibration_ids`. Marks these runs, and marks all runs of their groups as
// calibrated. Ids of runs that are unsupported or have no measured time do
// nothing. All predictions must have sensitivities.
void Calibrate(const std::vector<std::string>& calibration_ids,
               std::vector<RunPrediction>* predictions);

// Chooses `count` runs of each CalibrationGroup(), but never all of them: first
// the run on the fewest devices, then the one on the most, then runs evenly
// spaced between. Runs on equally many devices are ordered by predicted time,
// fastest first, then by id.
std::vector<std::string> ChooseCalibrationRuns(
    const std::vector<RunPrediction>& predictions, int count);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_EVALUATE_CALIBRATE_PREDICTIONS_H_
