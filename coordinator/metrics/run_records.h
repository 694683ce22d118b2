// The values that a run reports while it goes on, and their names in
// dashboards.

#ifndef MILLRACE_COORDINATOR_METRICS_RUN_RECORDS_H_
#define MILLRACE_COORDINATOR_METRICS_RUN_RECORDS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "planner/simulate/timeline.h"

namespace millrace {

// Means over the pairs of a step that trains preferences.
struct RewardRecord {
  double chosen;
  double rejected;
  double accuracy;  // Share of pairs whose chosen answer has the larger reward.
  double margin() const { return chosen - rejected; }
};

struct StepRecord {
  int64_t generation;
  int64_t step;
  double loss;
  double gradient_norm;
  double learning_rate;
  int64_t tokens;
  double step_time_s;
  double predicted_step_time_s;
  std::optional<double> validation_loss;
  std::map<std::string, double> evaluation;  // Losses by set, where it was due.
  std::optional<RewardRecord> rewards;       // Where pairs are trained.
};

// Tokens that the step trained on a second.
double TokensPerSecond(const StepRecord& record);

// Seconds of one rank since the run began.
struct RankTime {
  int32_t stage = 0;
  std::string host;  // Empty: not known.
  TimeBreakdown steps;
  double checkpoint_s = 0;
  double validation_s = 0;
};

// One value of a step.
struct StepMetric {
  const char* tag;   // For TensorBoard and MLflow: "train/loss".
  const char* name;  // For Prometheus: "millrace_loss".
  const char* help;  // One sentence, with the unit.
  // Absent in steps that have no such value.
  std::optional<double> (*value)(const StepRecord& record);
};
std::span<const StepMetric> StepMetrics();

// All values of a step by tag: those of StepMetrics(), and of each evaluated
// set "evaluation/NAME/loss" and "evaluation/NAME/perplexity".
std::vector<std::pair<std::string, double>> TaggedValues(
    const StepRecord& record);

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_METRICS_RUN_RECORDS_H_
