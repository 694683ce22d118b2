#include "coordinator/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/units.h"

namespace millrace {

bool IsInteractive() {
  const char* wish = std::getenv("MILLRACE_PROGRESS");
  if (wish != nullptr && *wish != '\0') return std::strcmp(wish, "0") != 0;
  // Open MPI gives its processes a terminal even where its own output is not.
  if (std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr) return false;
  return isatty(STDOUT_FILENO) != 0;
}

void Progress::Step(const ProgressStep& step, absl::Time now) {
  mean_step_time_s_ = mean_step_time_s_ == 0
                          ? step.step_time_s
                          : 0.9 * mean_step_time_s_ + 0.1 * step.step_time_s;
  const bool last = step.step >= options_.num_steps;
  const int64_t tenth =
      step.step * 10 / std::max<int64_t>(1, options_.num_steps);
  if (options_.interactive) {
    if (!last && now - last_drawn_ < absl::Milliseconds(100)) return;
  } else {
    if (!last && tenth == last_tenth_) return;
  }
  last_drawn_ = now;
  last_tenth_ = tenth;
  const int64_t steps_left =
      std::max<int64_t>(0, options_.num_steps - step.step);
  const std::string line = absl::StrFormat(
      "step %6d/%d  loss %.4f  %s tokens/s  %.0f %% of predicted speed  %s "
      "left",
      step.step, options_.num_steps, step.loss, FormatCount(step.tokens_per_s),
      100 * options_.predicted_step_time_s / std::max(mean_step_time_s_, 1e-9),
      FormatSeconds(static_cast<double>(steps_left) * mean_step_time_s_));
  if (options_.interactive) {
    // Return to the line's start and clear what a longer line left.
    out_ << "\r" << line << "\x1b[K" << std::flush;
    line_open_ = true;
  } else {
    out_ << line << std::endl;
  }
}

void Progress::Line(const std::string& line) {
  if (line_open_) out_ << "\n";
  line_open_ = false;
  out_ << line << std::endl;
}

}  // namespace millrace
