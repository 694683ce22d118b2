// Sums up how well predictions of published runs (planner/evaluate/evaluate.h)
// hold: errors by kind of run, and the cost of choosing layouts by the model.

#ifndef MILLRACE_PLANNER_EVALUATE_EVALUATION_SUMMARY_H_
#define MILLRACE_PLANNER_EVALUATE_EVALUATION_SUMMARY_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "planner/evaluate/evaluate.h"
#include "planner/profile/profile.h"

namespace millrace {

// Absolute relative errors of step time. Runs that the calibration used count
// as supported, but their errors do not count.
struct ErrorSummary {
  std::string name;
  int count = 0;
  int supported = 0;
  int compared = 0;   // Supported ones with a measured step time.
  double median = 0;  // The three below are 0 if `compared` is 0.
  double p95 = 0;     // Interpolated between ranks.
  double mean_signed = 0;
};

// Runs that differ only in their layout: they have one model, source,
// precision, kind of device, number of devices and global batch.
struct ChoiceSummary {
  std::string name;
  int count = 0;
  // The measured time of the run that the model predicts to be the fastest,
  // over the least measured time, less one.
  double regret = 0;
  // Spearman's rank correlation of predicted and measured times. Equal values
  // share their mean rank. Absent for fewer than three runs, or if all
  // predicted or all measured times are equal.
  std::optional<double> spearman;
};

struct EvaluationSummary {
  ErrorSummary all;
  std::vector<ErrorSummary> by_group;    // By first appearance.
  std::vector<ErrorSummary> by_quality;  // Sorted.
  // The classes are "dense A/A+", "experts", "fp8/fp4", "bf16/fp16", and
  // "calibrated" for runs of groups that the calibration used runs of. A run
  // may be in several.
  std::vector<ErrorSummary> by_class;
  int num_memory = 0;            // Runs with measured memory, supported.
  double mean_memory_error = 0;  // Mean of absolute relative errors.
  std::vector<ChoiceSummary> choices;
};

EvaluationSummary Summarize(const std::vector<RunPrediction>& predictions);

// The step_error of each shipped profile: how far plans made with it are off.
// By the profile's name, ErrorOfRuns (planner/profile/prediction_interval.h) of
// the supported runs of dense models of quality A-, A or A+ that were measured
// and that no calibration was made with.
std::map<std::string, StepError> ErrorsByProfile(
    const std::vector<RunPrediction>& predictions);

// The correlation of ChoiceSummary. Both vectors have one length.
std::optional<double> Spearman(const std::vector<double>& a,
                               const std::vector<double>& b);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_EVALUATE_EVALUATION_SUMMARY_H_
