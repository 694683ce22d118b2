#include "fault/bad_steps.h"

namespace millrace {

void BadSteps::Begin(int32_t num_ranks) {
  num_ranks_ = num_ranks;
  reports_.clear();
  // Steps that are trained again are counted again.
  last_skipped_ = -1;
  num_in_row_ = 0;
}

std::optional<BadStepVerdict> BadSteps::Note(Rank rank,
                                             const BadStepReport& report) {
  auto& of_step = reports_[report.step];
  of_step[rank] = report;
  if (static_cast<int32_t>(of_step.size()) < num_ranks_) return std::nullopt;
  BadStepVerdict verdict = {.step = report.step, .passed = true};
  for (const auto& [member, said] : of_step) {
    verdict.passed = verdict.passed && said.passed;
    if (!said.origin.empty()) verdict.origins.emplace_back(member, said.origin);
    if (said.largest_amax > verdict.largest_amax) {
      verdict.largest_amax = said.largest_amax;
      verdict.largest_in = said.largest_in;
      verdict.largest_on = member;
    }
  }
  reports_.erase(reports_.begin(), reports_.upper_bound(report.step));
  if (!verdict.passed) {
    num_in_row_ = report.step == last_skipped_ + 1 ? num_in_row_ + 1 : 1;
    last_skipped_ = report.step;
    verdict.num_in_row = num_in_row_;
  }
  return verdict;
}

}  // namespace millrace
