#include "planner/explain/explain_disturbance.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "planner/search/prediction.h"

namespace millrace {
namespace {

// Noise alone makes now this rank the last and now that one.
constexpr size_t kShownDisturbanceCauses = 3;
constexpr double kShownShare = 0.05;

}  // namespace

std::string DisturbanceText(const DisturbedStep& disturbed, int indent) {
  const std::string next_line = absl::StrCat("\n", std::string(indent, ' '));
  std::string text = absl::StrFormat(
      "%s expected, %.1f %% slower (%s to %s with the model's error)%sof %d "
      "simulated steps (seed %d) 5 %% take less than %s, half less than %s, 5 "
      "%% more than %s; the longest %s",
      FormatStepTime(disturbed.step_time_s), 100 * disturbed.slowdown,
      FormatStepTime(disturbed.low_s), FormatStepTime(disturbed.high_s),
      next_line, disturbed.num_steps, disturbed.seed,
      FormatStepTime(disturbed.p5_s), FormatStepTime(disturbed.median_s),
      FormatStepTime(disturbed.p95_s), FormatStepTime(disturbed.longest_s));
  if (disturbed.num_slow_nodes > 0) {
    absl::StrAppend(&text, next_line, disturbed.num_slow_nodes,
                    disturbed.num_slow_nodes == 1 ? " node is" : " nodes are",
                    " slow");
  }
  const double added_s =
      disturbed.step_time_s * (1 - 1 / (1 + disturbed.slowdown));
  size_t num_shown = 0;
  for (const DisturbanceCause& cause : disturbed.causes) {
    if (num_shown == kShownDisturbanceCauses ||
        cause.seconds < kShownShare * added_s) {
      break;
    }
    absl::StrAppend(&text, next_line, "+", FormatStepTime(cause.seconds),
                    " by ", cause.text);
    ++num_shown;
  }
  if (num_shown == 0 && !disturbed.causes.empty()) {
    absl::StrAppend(&text, next_line,
                    "no rank or link makes much of it: now one is the last and "
                    "now another, most often ",
                    disturbed.causes.front().text);
  }
  return text;
}

}  // namespace millrace
