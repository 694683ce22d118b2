// The newest state of a run in Prometheus' text format.

#ifndef MILLRACE_COORDINATOR_METRICS_PROMETHEUS_TEXT_H_
#define MILLRACE_COORDINATOR_METRICS_PROMETHEUS_TEXT_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "base/ids.h"
#include "coordinator/metrics/run_records.h"

namespace millrace {

struct RunSnapshot {
  std::string run;  // The run directory's name, a label of all values.
  int64_t num_steps = 0;
  bool running = true;
  std::optional<StepRecord> step;            // The newest.
  std::optional<double> validation_loss;     // The newest.
  std::map<std::string, double> evaluation;  // The newest loss of each set.
  std::map<std::string, int64_t> events;     // How often each came.
  std::map<Rank, RankTime> ranks;
};

std::string PrometheusText(const RunSnapshot& snapshot);

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_METRICS_PROMETHEUS_TEXT_H_
