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

std::vector<std::string> DisturbanceLines(const DisturbedStep& disturbed) {
  std::vector<std::string> lines = {
      absl::StrFormat(
          "%s expected, %.1f %% slower (%s to %s with the model's error)",
          FormatStepTime(disturbed.step_time_s), 100 * disturbed.slowdown,
          FormatStepTime(disturbed.low_s), FormatStepTime(disturbed.high_s)),
      absl::StrFormat(
          "of %d simulated steps (seed %d) 5 %% take less than %s, half less "
          "than %s, 5 %% more than %s; the longest %s",
          disturbed.num_steps, disturbed.seed, FormatStepTime(disturbed.p5_s),
          FormatStepTime(disturbed.median_s), FormatStepTime(disturbed.p95_s),
          FormatStepTime(disturbed.longest_s))};
  if (disturbed.num_slow_nodes > 0) {
    lines.push_back(absl::StrCat(
        disturbed.num_slow_nodes,
        disturbed.num_slow_nodes == 1 ? " node is" : " nodes are", " slow"));
  }
  const double added_s =
      disturbed.step_time_s * (1 - 1 / (1 + disturbed.slowdown));
  size_t num_shown = 0;
  for (const DisturbanceCause& cause : disturbed.causes) {
    if (num_shown == kShownDisturbanceCauses ||
        cause.seconds < kShownShare * added_s) {
      break;
    }
    lines.push_back(
        absl::StrCat("+", FormatStepTime(cause.seconds), " by ", cause.text));
    ++num_shown;
  }
  if (num_shown == 0 && !disturbed.causes.empty()) {
    lines.push_back(
        absl::StrCat("no single rank or link adds much: each is the last to "
                     "finish now and then, most often ",
                     disturbed.causes.front().text));
  }
  return lines;
}

}  // namespace millrace
