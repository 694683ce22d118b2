// The verdict on a bad step, from one report of each rank.

#ifndef MILLRACE_TESTS_FAULT_BAD_STEP_VERDICT_H_
#define MILLRACE_TESTS_FAULT_BAD_STEP_VERDICT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/check.h"
#include "fault/bad_steps.h"

namespace millrace {

// `reports`: by rank, of the same step.
inline BadStepVerdict VerdictOf(const Layout& layout,
                                const std::vector<BadStepReport>& reports) {
  BadSteps steps;
  steps.Begin(layout);
  std::optional<BadStepVerdict> verdict;
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    verdict = steps.Note(Rank{static_cast<int32_t>(rank)}, reports[rank]);
  }
  CHECK(verdict.has_value());
  return *verdict;
}

}  // namespace millrace

#endif  // MILLRACE_TESTS_FAULT_BAD_STEP_VERDICT_H_
