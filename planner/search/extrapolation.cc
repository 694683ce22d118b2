#include "planner/search/extrapolation.h"

#include <algorithm>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "planner/profile/op_shape.h"
#include "planner/profile/profile.h"
#include "planner/program/ops.h"

namespace millrace {
namespace {

constexpr double kNearRatio = 2;
// How much shorter and longer than predicted a step may be if all of it is
// extrapolated. Both are chosen, not fitted. Rows of large models alone
// predicted steps of small models up to 49 % too short
// (docs/results/2026-11-22-small-models-h200.md).
constexpr double kFurtherLow = 0.25;
constexpr double kFurtherHigh = 0.5;

}  // namespace

Extrapolation ExtrapolationOf(std::span<const Program> programs,
                              const CostModel& cost) {
  if (!cost.HasTables()) return {};
  std::map<OpShape, bool> is_beyond;
  std::map<std::string, double> seconds_by_kind;
  double all_s = 0, beyond_s = 0;
  for (const Program& program : programs) {
    const std::vector<double> seconds = cost.ProgramSeconds(program);
    for (size_t i = 0; i < seconds.size(); ++i) {
      const Instruction& in = program.instructions[i];
      if (in.lane == Lane::kHost) continue;
      all_s += seconds[i];
      if (!cost.IsPricedByRow(program.layout, in.kind, in.attributes)) continue;
      const OpShape shape = ShapeOf(program.layout, in.kind, in.attributes,
                                    cost.profile().ranks_per_host);
      const auto [known, is_new] = is_beyond.try_emplace(shape, false);
      if (is_new) known->second = cost.Reach(shape) > kNearRatio;
      if (!known->second) continue;
      beyond_s += seconds[i];
      seconds_by_kind[KindText(shape)] += seconds[i];
    }
  }
  if (beyond_s == 0) return {};
  const auto most = std::max_element(
      seconds_by_kind.begin(), seconds_by_kind.end(),
      [](const auto& a, const auto& b) { return a.second < b.second; });
  return {.share = beyond_s / all_s, .most = most->first};
}

void SayWhatWasExtrapolated(std::span<const Program> programs,
                            const CostModel& cost, Plan* plan) {
  const Extrapolation beyond = ExtrapolationOf(programs, cost);
  if (beyond.share < kLeastExtrapolatedShare) return;
  plan->warnings.push_back(absl::StrCat(
      absl::StrFormat("extrapolated: %.0f %% of the time of the step's ops",
                      100 * beyond.share),
      " is of shapes beyond the rows of hardware profile '",
      cost.profile().name, "', mostly ", beyond.most,
      "; the interval is wider for it; measure with millrace profile JOB"));
  Prediction& prediction = plan->prediction;
  if (prediction.step_time_low_s.has_value()) {
    *prediction.step_time_low_s /= 1 + kFurtherLow * beyond.share;
  }
  if (prediction.step_time_high_s.has_value()) {
    *prediction.step_time_high_s *= 1 + kFurtherHigh * beyond.share;
  }
}

}  // namespace millrace
