// Prints the progress of a run: on a terminal one line that is redrawn,
// elsewhere one line for each tenth of the steps.

#ifndef MILLRACE_COORDINATOR_PROGRESS_H_
#define MILLRACE_COORDINATOR_PROGRESS_H_

#include <cstdint>
#include <ostream>
#include <string>

#include "absl/time/time.h"

namespace millrace {

// True if standard output is a terminal, or MILLRACE_PROGRESS=1 says that what
// is behind it ends at one (under mpirun it is a pipe).
bool IsInteractive();

struct ProgressOptions {
  bool interactive;
  int64_t num_steps;
  double predicted_step_time_s;
};

struct ProgressStep {
  int64_t step;
  double loss;
  double tokens_per_s;
  double step_time_s;
};

class Progress {
 public:
  Progress(const ProgressOptions& options, std::ostream& out)
      : options_(options), out_(out) {}

  // "step  120/250  loss 3.412  18.3 k tokens/s  97 % of predicted  1 min 02 s
  // left". Interactive lines are redrawn at most ten times a second.
  void Step(const ProgressStep& step, absl::Time now);
  // Ends a line under way, then prints `line`.
  void Line(const std::string& line);

 private:
  const ProgressOptions options_;
  std::ostream& out_;
  bool line_open_ = false;
  absl::Time last_drawn_ = absl::InfinitePast();
  int64_t last_tenth_ = -1;
  double mean_step_time_s_ = 0;  // Exponential, over about ten steps.
};

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_PROGRESS_H_
