#include "worker/train/step_pace.h"

#include <algorithm>

namespace millrace {

void StepPace::Launched(double now_s, bool was_idle) {
  began_s_.reset();
  if (was_idle) began_s_ = now_s;
}

void StepPace::Ended(double step_time_s, std::optional<double> seen_s) {
  step_times_[num_ended_++ % step_times_.size()] = step_time_s;
  if (!began_s_.has_value()) began_s_ = seen_s;
}

double StepPace::NextAt() const {
  const size_t num_known = std::min(num_ended_, step_times_.size());
  if (!began_s_.has_value() || num_known == 0) return 0;
  const double step_s = *std::min_element(
      step_times_.begin(),
      step_times_.begin() + static_cast<ptrdiff_t>(num_known));
  if (step_s < kShortestHeldSeconds) return 0;
  return *began_s_ + step_s * (1 - kAheadShare) - kAheadSeconds;
}

}  // namespace millrace
