#include "coordinator/checkpoint_interval.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/units.h"
#include "planner/fleet/goodput.h"

namespace millrace {
namespace {

constexpr double kSecondsOfHour = 3600;
constexpr double kHoursBetweenFailures = 50'000;  // Of one device.
// One core of a common server copies so many bytes in a second.
constexpr double kCopiedBytesPerSecond = 4e9;
constexpr double kDiskBytesPerSecond = 500e6;
// No checkpoint is free; a free one would be taken all the time.
constexpr double kLeastStall = 1e-3;
constexpr double kWorthwhileFactor = 1.25;

// Zero where the rate is 0, which is any.
double SecondsAt(int64_t bytes_per_second, int64_t num_bytes) {
  return bytes_per_second == 0 ? 0
                               : static_cast<double>(num_bytes) /
                                     static_cast<double>(bytes_per_second);
}

}  // namespace

double MeanTimeBetweenFailures(const GoodputSpec& spec,
                               const ObservedFailures& observed) {
  const double hours = spec.mean_time_between_failures_hours > 0
                           ? spec.mean_time_between_failures_hours
                           : kHoursBetweenFailures;
  const double device_s =
      hours * kSecondsOfHour + observed.num_devices * observed.seconds;
  return device_s / (1 + observed.num_failures) / observed.num_devices;
}

CheckpointCost GuessCheckpointCost(int64_t part_bytes, int32_t ranks_per_host,
                                   const std::optional<SnapshotPlan>& predicted,
                                   int64_t bytes_per_second) {
  const auto bytes = static_cast<double>(part_bytes);
  return {.stall_s = predicted.has_value() ? predicted->stall_s
                                           : bytes / kCopiedBytesPerSecond,
          .write_s = std::max(bytes * ranks_per_host / kDiskBytesPerSecond,
                              SecondsAt(bytes_per_second, part_bytes))};
}

std::string SlowWriteWarning(const CheckpointSpec& spec, int64_t part_bytes,
                             double step_s) {
  const double write_s = SecondsAt(spec.bytes_per_second, part_bytes);
  const double between_s = static_cast<double>(spec.interval_steps) * step_s;
  if (spec.policy != "fixed" || spec.interval_steps == 0 ||
      write_s <= between_s) {
    return "";
  }
  return absl::StrCat(
      "checkpoint.bytes_per_second is ", FormatBytes(spec.bytes_per_second),
      ", at which a rank's ", FormatBytes(part_bytes), " take ",
      FormatSeconds(write_s), ", and a checkpoint is due every ",
      FormatSeconds(between_s),
      ": training waits for the rest of each, which is then written at full "
      "speed; raise it, or set checkpoint.interval_steps: ",
      static_cast<int64_t>(std::ceil(write_s / step_s)), " or more");
}

IntervalChoice ChooseCheckpointInterval(const IntervalInput& input) {
  const FailureModel failures = {
      .mean_time_between_failures_s = input.mean_time_between_failures_s,
      .checkpoint_s = std::max(input.cost.stall_s, kLeastStall),
      .checkpoint_lag_s = input.cost.write_s,
      .recovery_s = input.recovery_s};
  const double best_s = BestCheckpointInterval(failures);
  const double interval_s = std::max(best_s, input.cost.write_s);
  IntervalChoice interval;
  interval.steps = static_cast<int64_t>(
      std::clamp(std::ceil(interval_s / input.step_s), 1.0, 1e12));
  interval.description = absl::StrCat(
      "every ", interval.steps, interval.steps == 1 ? " step (" : " steps (",
      FormatSeconds(static_cast<double>(interval.steps) * input.step_s),
      "): a checkpoint costs ", FormatSeconds(failures.checkpoint_s),
      " of training and counts after ", FormatSeconds(input.cost.write_s),
      input.cost.is_measured ? " (measured)"
                             : " (guessed until one is written)",
      ", a failure is expected every ",
      FormatSeconds(input.mean_time_between_failures_s),
      interval_s > best_s ? "; no shorter than writing one takes" : "");
  return interval;
}

bool IsWorthChanging(int64_t now_steps, int64_t steps) {
  const double factor = static_cast<double>(steps) /
                        static_cast<double>(std::max<int64_t>(1, now_steps));
  return factor > kWorthwhileFactor || factor < 1 / kWorthwhileFactor;
}

}  // namespace millrace
