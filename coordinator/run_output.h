// The run directory's records: events, metrics, where the time went, the
// verdict. docs/run_directory.md says what each file holds. A restarted
// coordinator opens the same files and goes on; what it is told twice is
// written once.

#ifndef MILLRACE_COORDINATOR_RUN_OUTPUT_H_
#define MILLRACE_COORDINATOR_RUN_OUTPUT_H_

#include <cstdint>
#include <deque>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/ids.h"
#include "coordinator/metrics/metrics_feed.h"
#include "coordinator/metrics/run_records.h"
#include "fault/loss_watch.h"
#include "planner/simulate/timeline.h"

namespace millrace {

struct EventRecord {
  std::string event;
  int64_t generation = -1;  // Below zero: left out. So with the next two.
  int64_t step = -1;
  int32_t rank = -1;
  std::string host;    // The rank's. Empty: left out.
  std::string detail;  // Empty: left out.
};

struct ResultRecord {
  std::string status;  // "finished", "stopped", "failed".
  std::string reason;
  int64_t steps = 0;
  double final_loss = 0;
  int64_t device_bytes = 0;    // Most used of a device; 0: not known.
  std::string parameter_hash;  // Empty if the end left no checkpoint.
};

class RunOutput {
 public:
  // `started_unix_s`: when the run began, by the wall clock.
  static absl::StatusOr<std::unique_ptr<RunOutput>> Open(
      const std::string& run_directory, double started_unix_s);

  // Tells `metrics` too whatever is recorded from now on.
  void Feed(std::unique_ptr<MetricsFeed> metrics);
  // Lines for people about that.
  std::vector<std::string> TakeMetricsWarnings();

  // Why records could not be written since the last call; OK if all were. Later
  // ones are tried again.
  absl::Status TakeLoss() { return std::exchange(loss_, absl::OkStatus()); }
  // Gives up the space that was kept for what must be durable when the disk is
  // full; false if there is none left.
  bool FreeReserve();

  void Event(const EventRecord& record);
  // Returns false, and writes nothing, if the (generation, step) is not newer
  // than the last.
  bool Step(const StepRecord& record);
  // The same rule, for each rank by itself.
  bool AddRankStep(Rank rank, int64_t generation, int64_t step, int32_t stage,
                   const TimeBreakdown& breakdown, double validation_s);
  void SetHost(Rank rank, const std::string& host);
  void AddCheckpoint(Rank rank, double seconds);
  // Appends the end of a log that another host keeps; told twice in a row, it
  // appends it once. Failing that hurts nobody.
  void AddToLog(WorkerIdx worker, const std::string& text);
  // Adds time from the run's start, or from a failure, until the next step.
  void AddStartup(double seconds) { startup_s_ += seconds; }
  void AddRecovery(double seconds) { recovery_s_ += seconds; }

  absl::Status WriteTime();
  absl::Status WriteResult(const ResultRecord& record);
  absl::Status WriteFile(const std::string& name, const std::string& content);

  double SecondsSinceStart() const;
  // Returns the median of all steps in metrics.jsonl but the first two, which
  // warm up caches; 0 before the third.
  double MedianStepTime() const;
  // The last LossWatch::kKept losses that metrics.jsonl had when it was opened.
  const std::deque<StepLoss>& losses_read() const { return losses_read_; }
  double last_loss() const { return last_loss_; }
  int64_t last_step() const { return last_step_.second; }  // 0: none.
  // "compute 71 %, bubble 12 %, ...": mean over ranks, parts above 0.5 %.
  std::string TimeInOneLine() const;

 private:
  RunOutput(std::string run_directory, double started_unix_s);
  absl::Status ReadMetrics();
  absl::Status ReadTime();
  void KeepReserve() const;
  // A file of lines that goes on after a line that could not be written.
  struct Lines {
    std::string path;
    std::ofstream stream;
    bool is_torn = false;  // The last line may be there in part.
  };
  void Append(const std::string& line, Lines* lines);

  const std::string run_directory_;
  const double started_unix_s_;
  Lines events_;
  Lines steps_;  // metrics.jsonl.
  absl::Status loss_;
  std::pair<int64_t, int64_t> last_step_ = {0, 0};  // Generation, step.
  double last_loss_ = 0;
  std::vector<double> step_times_;
  std::deque<StepLoss> losses_read_;
  std::map<Rank, std::pair<int64_t, int64_t>> last_rank_steps_;
  std::map<Rank, RankTime> ranks_;
  double startup_s_ = 0;
  double recovery_s_ = 0;
  std::unique_ptr<MetricsFeed> metrics_;  // May be null.
};

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_RUN_OUTPUT_H_
