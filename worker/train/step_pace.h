// Says when the host gives a device its next step. A step that a device has
// been given cannot be taken back, so when a peer dies the survivors run it to
// its end for nothing. Given early, the next step costs a recovery a whole
// step. Given too late, it lets the device wait.

#ifndef MILLRACE_WORKER_TRAIN_STEP_PACE_H_
#define MILLRACE_WORKER_TRAIN_STEP_PACE_H_

#include <array>
#include <cstddef>
#include <optional>

namespace millrace {

// Times are those of MonotonicSeconds().
class StepPace {
 public:
  // How long before the expected end of a step the next one is given: for a
  // host that is held up, and for steps that are shorter than the last ones.
  static constexpr double kAheadSeconds = 0.05;
  static constexpr double kAheadShare = 0.05;  // Of the step, more than that.
  // Shorter steps are given at once.
  static constexpr double kShortestHeldSeconds = 0.2;

  // The device was given a step. If it had nothing to do, it begins it now;
  // else when the one before has ended.
  void Launched(double now_s, bool was_idle);
  // The step before took `step_time_s`. `seen_s` is when it ended; absent if
  // the host did not look at that moment.
  void Ended(double step_time_s, std::optional<double> seen_s);

  // When to give the next step, by the shortest of the last steps. Zero, at
  // once, if it is not known how long the running one has run.
  double NextAt() const;

 private:
  std::array<double, 8> step_times_ = {};  // The newest ones, in any order.
  size_t num_ended_ = 0;
  std::optional<double> began_s_;  // The running step.
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_TRAIN_STEP_PACE_H_
