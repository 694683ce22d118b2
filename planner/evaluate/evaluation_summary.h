// How well predictions of published runs (planner/evaluate/evaluate.h) hold:
// errors by kind of run, and what choosing layouts by the model would cost.

#ifndef MILLRACE_PLANNER_EVALUATE_EVALUATION_SUMMARY_H_
#define MILLRACE_PLANNER_EVALUATE_EVALUATION_SUMMARY_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "planner/evaluate/evaluate.h"
#include "planner/profile/profile.h"

namespace millrace {

// Absolute relative errors of step time. Runs of a calibration count as
// supported, but their errors do not.
struct ErrorSummary {
  std::string name;
  int count = 0;
  int supported = 0;
  int compared = 0;   // Of them, those with a measured step time.
  double median = 0;  // The three below are 0 where nothing is compared.
  double p95 = 0;     // Interpolated between ranks.
  double mean_signed = 0;
};

// Runs of one model, source, precision, kind and number of devices and global
// batch, so that the layout alone differs.
struct ChoiceSummary {
  std::string name;
  int count = 0;
  // Measured time of the run that the model puts first, over the best one's,
  // less one.
  double regret = 0;
  // Rank correlation of predicted and measured times (Spearman; equal values
  // share their mean rank); absent for fewer than three runs and where all of
  // one side are equal.
  std::optional<double> spearman;
};

struct EvaluationSummary {
  ErrorSummary all;
  std::vector<ErrorSummary> by_group;    // In the order of first appearance.
  std::vector<ErrorSummary> by_quality;  // Sorted.
  // "dense A/A+", "experts", "fp8/fp4", "bf16/fp16", and "calibrated": runs of
  // groups that a calibration had runs of. A run may be in several.
  std::vector<ErrorSummary> by_class;
  int num_memory = 0;            // Runs with measured memory, supported.
  double mean_memory_error = 0;  // Of absolute relative errors.
  std::vector<ChoiceSummary> choices;
};

EvaluationSummary Summarize(const std::vector<RunPrediction>& predictions);

// The step_error of each shipped profile: how far plans made with it are off.
// By the profile's name, ErrorOfRuns (planner/profile/prediction_interval.h) of
// the supported runs of dense models of quality A-, A or A+ that were measured
// and that no calibration was made with.
std::map<std::string, StepError> ErrorsByProfile(
    const std::vector<RunPrediction>& predictions);

// As in ChoiceSummary; equally long vectors.
std::optional<double> Spearman(const std::vector<double>& a,
                               const std::vector<double>& b);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_EVALUATE_EVALUATION_SUMMARY_H_
