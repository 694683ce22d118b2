#include "planner/job/job.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace millrace {

double LearningRateAt(const TrainingSpec& training, int64_t step) {
  const OptimizerSpec& optimizer = training.optimizer;
  const double peak = optimizer.learning_rate;
  if (step < optimizer.warmup_steps) {
    return peak * static_cast<double>(step) /
           static_cast<double>(optimizer.warmup_steps);
  }
  // A warmup as long as the training leaves no room to decay.
  const int64_t decay_steps = training.num_steps - optimizer.warmup_steps;
  if (optimizer.decay == LearningRateDecay::kNone || decay_steps <= 0) {
    return peak;
  }
  const double progress =
      std::clamp(static_cast<double>(step - optimizer.warmup_steps) /
                     static_cast<double>(decay_steps),
                 0.0, 1.0);
  const double remaining =
      optimizer.decay == LearningRateDecay::kLinear
          ? 1.0 - progress
          : 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  return optimizer.min_learning_rate +
         (peak - optimizer.min_learning_rate) * remaining;
}

}  // namespace millrace
