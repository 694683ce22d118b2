// Tells dashboards what a run does while it goes on: TensorBoard's event files,
// MLflow's folder, a textfile for node exporters and /metrics for Prometheus,
// as the job's metrics section asks. docs/dashboards.md shows them.
//
// Nothing here holds up the run. Its calls put values into a short queue and
// return; a thread writes them. Where that thread cannot keep up, steps are
// dropped. The first failure of each target, and the first step dropped, is one
// warning.

#ifndef MILLRACE_COORDINATOR_METRICS_METRICS_FEED_H_
#define MILLRACE_COORDINATOR_METRICS_METRICS_FEED_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/ids.h"
#include "coordinator/http/http_server.h"
#include "coordinator/metrics/run_records.h"
#include "planner/job/job.h"

namespace millrace {

struct MetricsOptions {
  JobSpec job;
  std::string run_directory;
  double started_unix_s = 0;
};

class MetricsFeed {
 public:
  explicit MetricsFeed(const MetricsOptions& options);
  // Gives the thread two seconds for what is in the queue. A thread that hangs
  // in a write, as to a lost network disk, is left behind.
  ~MetricsFeed();

  void Step(const StepRecord& record);
  void Event(const std::string& event);
  // All of a rank's time so far.
  void Ranks(Rank rank, const RankTime& time);
  // `status`: that of result.json.
  void End(const std::string& status);
  // Lines for people that came up since the last call.
  std::vector<std::string> TakeWarnings();

  // Where /metrics is served; 0: nowhere.
  int32_t port() const { return server_ == nullptr ? 0 : server_->port(); }

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
  std::unique_ptr<HttpServer> server_;  // Asks impl_ for its answers.
};

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_METRICS_METRICS_FEED_H_
