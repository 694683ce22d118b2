// Follows a run by the files that it leaves, while they grow: what was read
// once is not read again. Works on any machine that sees the run directory, and
// on a run that is over.

#ifndef MILLRACE_COORDINATOR_WATCH_RUN_FOLLOWER_H_
#define MILLRACE_COORDINATOR_WATCH_RUN_FOLLOWER_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace millrace {

struct WatchedStep {
  int64_t step = 0;
  int64_t generation = 0;
  std::optional<double> loss;  // Absent where it was not a number.
  double step_time_s = 0;
  double predicted_step_time_s = 0;  // 0: not known.
  double tokens_per_s = 0;
};

// Seconds of one rank by part, in the order of kTimeCategories.
struct WatchedRank {
  int64_t rank = 0;
  int64_t stage = 0;
  std::string host = {};  // Empty: not known.
  std::vector<double> seconds = {};
};

struct WatchedRun {
  std::string name;  // The run directory's.
  // The newest of the events that change it: "starting", "planned", "training",
  // "recovering", or what result.json says.
  std::string status = "starting";
  std::string reason;  // Why it ended; empty: nothing to say.
  bool over = false;
  std::string plan;       // The layout in one line; empty before there is one.
  int64_t num_steps = 0;  // 0: not known.
  std::optional<WatchedStep> step;  // The newest.
  double mean_step_time_s = 0;      // Exponential, over about ten steps.
  double newest_unix_s = 0;         // When its files changed last.
  std::optional<double> first_loss;
  std::optional<double> validation_loss;     // The newest.
  std::map<std::string, double> evaluation;  // The newest loss of each set.
  // The course of the loss, thinned to at most kMaxCurve points.
  std::vector<double> curve;
  int64_t num_deaths = 0;
  int64_t num_checkpoints = 0;
  std::optional<int64_t> checkpoint_step;  // The newest committed.
  std::deque<std::string> events;          // The last few, as text.
  // Remarks on ranks that compute too long, by rank.
  std::map<int64_t, std::string> slow_ranks;
  std::vector<WatchedRank> ranks;  // Empty before the first time.json.
};

class RunFollower {
 public:
  static constexpr size_t kMaxCurve = 512;

  // NotFound or InvalidArgument if `run_directory` is not one.
  static absl::StatusOr<RunFollower> Open(const std::string& run_directory);

  // Reads what is new. A file that is not there yet, or whose last line is only
  // half written, waits for the next call.
  absl::Status Refresh();
  const WatchedRun& run() const { return run_; }

 private:
  // A file of lines, and how far it was read.
  struct Tail {
    std::string path;
    int64_t offset = 0;
  };

  explicit RunFollower(const std::string& directory);
  absl::StatusOr<std::vector<nlohmann::json>> NewLines(Tail& tail);
  void AddStep(const nlohmann::json& line);
  void AddEvent(const nlohmann::json& line);
  void ReadJobAndResult();
  void ReadRanks();

  std::string directory_;
  Tail steps_;
  Tail events_;
  bool knows_job_ = false;
  int64_t curve_stride_ = 1;  // Steps between points of the curve.
  int64_t num_curve_steps_ = 0;
  WatchedRun run_;
};

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_WATCH_RUN_FOLLOWER_H_
