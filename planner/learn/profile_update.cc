#include "planner/learn/profile_update.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/units.h"
#include "planner/profile/prediction_interval.h"

namespace millrace {
namespace {

constexpr double kUnchanged = 1e-3;  // Limit of |log(after / before)|.

double Bounded(double log_ratio, double most) {
  return std::clamp(log_ratio, -std::log(most), std::log(most));
}

}  // namespace

void ProfileUpdate::Restart(bool damps) {
  damps_ = damps;
  result_ = {.profile = before_, .run = {}, .learnt = {}, .refused = {}};
}

void ProfileUpdate::Change(const std::string& value, double* stored,
                           double after, double ratio, int64_t num_samples,
                           bool is_new) {
  const double before = *stored;
  *stored = after;
  Remember(LearntChange{.value = value,
                        .run = run_.name,
                        .date = run_.date,
                        .num_samples = num_samples,
                        .ratio = ratio,
                        .previous = before},
           &profile());
  result_.learnt.push_back({.value = value,
                            .before = before,
                            .after = after,
                            .num_samples = num_samples,
                            .is_new = is_new});
}

void ProfileUpdate::ScaleRow(const OpShape& shape, double log_ratio,
                             int64_t num_calls, double* seconds) {
  log_ratio = Bounded(log_ratio, kMostRowRatio);
  const bool is_seen = num_calls > 0;
  if (!is_seen && std::fabs(log_ratio) < kUnchanged) return;
  const std::string text = ShapeText(shape);
  const double gain =
      GainOf(is_seen ? counts_.Of(text) : counts_.OfKind(shape));
  Change(text, seconds, *seconds * std::exp(gain * log_ratio),
         std::exp(log_ratio), num_calls);
}

void ProfileUpdate::AddRow(const OpShape& shape, double log_ratio,
                           int64_t num_calls, double guessed_s) {
  log_ratio = Bounded(log_ratio, kMostGuessRatio);
  double seconds = guessed_s;
  Change(ShapeText(shape), &seconds, seconds * std::exp(GainOf(0) * log_ratio),
         std::exp(log_ratio), num_calls, /*is_new=*/true);
  millrace::AddRow(shape, seconds, &profile());
}

void ProfileUpdate::MoveOverhead(const char* key, double measured_s,
                                 double* stored) {
  // Clocks resolve little below this, and no step depends on it.
  constexpr double kLeast = 1e-7;
  const double ratio = std::max(measured_s, kLeast) / std::max(*stored, kLeast);
  // An overhead that was never measured is only compared with the step.
  const bool is_first = *stored == 0 && measured_s < 0.1 * run_.step_time_s;
  if (!is_first && std::fabs(std::log(ratio)) > std::log(kMostLaunchRatio)) {
    Refuse(absl::StrFormat(
        "%s: measured %s, %.1f times what the profile has; at most %g are "
        "learnt",
        key, FormatSeconds(measured_s), ratio, kMostLaunchRatio));
    return;
  }
  const double after =
      is_first ? measured_s
               : *stored + GainOf(counts_.Of(key)) * (measured_s - *stored);
  if (after == *stored) return;
  Change(key, stored, after, ratio, num_steps());
}

void ProfileUpdate::ScaleFactor(const std::string& key, double log_ratio,
                                double* stored) {
  log_ratio = Bounded(log_ratio, kMostContentionRatio);
  if (std::fabs(log_ratio) < kUnchanged) return;
  const double after =
      std::max(1.0, *stored * std::exp(GainOf(counts_.Of(key)) * log_ratio));
  if (after == *stored) return;
  Change(key, stored, after, std::exp(log_ratio), num_steps());
}

void ProfileUpdate::MoveArrivalSpread(double to) {
  const char* const key = "waits.arrival_spread";
  double& spread = profile().waits.arrival_spread;
  const double step = to - spread;
  if (std::fabs(step) <= kUnchanged) return;
  Change(key, &spread, spread + GainOf(counts_.Of(key)) * step,
         spread > 0 ? to / spread : 1, num_steps());
}

void ProfileUpdate::MoveNoise(const char* name, double supposed,
                              const Scatter& measured) {
  if (measured.num_compared < kLeastCompared) return;
  const double deviation = BoundedNoise(measured.deviation);
  ModelConstant* const noise = NoiseConstant(name, supposed, &profile());
  noise->source = "scatter within runs that the profile learnt from";
  // A supposed value has no weight.
  const bool is_first = counts_.Of(name) == 0;
  const double gain = is_first ? 1 : GainOf(counts_.Of(name));
  Change(name, &noise->value, noise->value + gain * (deviation - noise->value),
         deviation / noise->value, measured.num_compared);
}

}  // namespace millrace
