#include "planner/learn/unexplained_time.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "planner/cost/host_sharing.h"
#include "planner/learn/learn_from_run.h"
#include "planner/search/program_prediction.h"

namespace millrace {
namespace {

constexpr double kNear = 0.005;

// The simulated step with this spread of arrivals, and with all factors of
// shared cores scaled.
absl::StatusOr<double> StepSeconds(const std::vector<Program>& programs,
                                   HardwareProfile profile,
                                   double arrival_spread,
                                   double contention_scale) {
  profile.waits.arrival_spread = arrival_spread;
  for (size_t i = 1; i < profile.compute_contention.size(); ++i) {
    double& factor = profile.compute_contention[i];
    factor = std::max(1.0, factor * contention_scale);
  }
  ASSIGN_OR_RETURN(const CostModel cost, CostModel::Create(std::move(profile)));
  ASSIGN_OR_RETURN(const Timeline timeline, SimulatePrograms(programs, cost));
  return timeline.step_time_s;
}

// Finds where the increasing function `seconds` reaches `wanted_s` between
// `low` and `high`, or returns the end that is nearer to it. It uses the
// Illinois variant of false position (Dowell and Jarratt, 1971).
template <typename Function>
absl::StatusOr<double> Solve(Function seconds, double wanted_s, double low,
                             double high) {
  ASSIGN_OR_RETURN(double at_low, seconds(low));
  at_low -= wanted_s;
  if (at_low >= 0) return low;
  ASSIGN_OR_RETURN(double at_high, seconds(high));
  at_high -= wanted_s;
  if (at_high <= 0) return high;
  double middle = low;
  int last_side = 0;
  constexpr int kMostRounds = 12;
  for (int round = 0; round < kMostRounds; ++round) {
    middle = (low * at_high - high * at_low) / (at_high - at_low);
    ASSIGN_OR_RETURN(double at_middle, seconds(middle));
    at_middle -= wanted_s;
    if (std::fabs(at_middle) < 1e-4 * wanted_s) break;
    const int side = at_middle > 0 ? 1 : -1;
    (side > 0 ? high : low) = middle;
    (side > 0 ? at_high : at_low) = at_middle;
    if (side == last_side) (side > 0 ? at_low : at_high) /= 2;
    last_side = side;
  }
  return middle;
}

bool HasCollectives(const Layout& layout) {
  return layout.tensor > 1 || layout.data > 1;
}

}  // namespace

absl::StatusOr<StepClosure> CloseStep(const std::vector<Program>& programs,
                                      const CostModel& cost,
                                      double measured_s) {
  const HardwareProfile& profile = cost.profile();
  const auto seconds_with = [&](double spread, double scale) {
    return StepSeconds(programs, profile, spread, scale);
  };
  StepClosure closure{.arrival_spread = profile.waits.arrival_spread,
                      .refused = {}};
  const auto near = [&](double seconds) {
    return std::fabs(std::log(seconds / measured_s)) < kNear;
  };
  ASSIGN_OR_RETURN(double seconds, seconds_with(closure.arrival_spread, 1));
  if (near(seconds)) return closure;
  if (HasCollectives(programs.front().layout)) {
    ASSIGN_OR_RETURN(
        closure.arrival_spread,
        Solve([&](double spread) { return seconds_with(spread, 1); },
              measured_s, 0, kMostArrivalSpread));
    ASSIGN_OR_RETURN(seconds, seconds_with(closure.arrival_spread, 1));
  }
  const bool too_long = seconds > measured_s;
  if (!near(seconds) && SharesCores(profile.compute_contention) &&
      (too_long || !HasCollectives(programs.front().layout))) {
    ASSIGN_OR_RETURN(
        closure.contention_scale,
        Solve(
            [&](double scale) {
              return seconds_with(closure.arrival_spread, scale);
            },
            measured_s, 1 / kMostContentionRatio, kMostContentionRatio));
    ASSIGN_OR_RETURN(seconds, seconds_with(closure.arrival_spread,
                                           closure.contention_scale));
  }
  if (near(seconds)) return closure;
  closure.refused = absl::StrFormat(
      "the step took %.2f times what its ops and what ranks wait for one "
      "another explain; this was not learnt",
      measured_s / seconds);
  // A value at its limit explains nothing, so the value before is kept.
  if (closure.arrival_spread >= kMostArrivalSpread) {
    closure.arrival_spread = profile.waits.arrival_spread;
  }
  if (std::fabs(std::log(closure.contention_scale)) >=
      std::log(kMostContentionRatio) - 1e-9) {
    closure.contention_scale = 1;
  }
  return closure;
}

}  // namespace millrace
