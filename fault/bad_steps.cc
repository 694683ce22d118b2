#include "fault/bad_steps.h"

#include <algorithm>
#include <iterator>
#include <set>

namespace millrace {
namespace {

// Data replicas, by their index.
using Replicas = std::set<int32_t>;

// With the samples of the next replica, the one before computes what a replica
// computed with its own.
Replicas OnesBefore(const Replicas& replicas, int32_t num_replicas) {
  Replicas before;
  for (const int32_t replica : replicas) {
    before.insert((replica + num_replicas - 1) % num_replicas);
  }
  return before;
}

void FindCause(const Layout& layout,
               const std::map<Rank, BadStepReport>& reports,
               BadStepVerdict& verdict) {
  std::vector<Rank> at_home, elsewhere;
  Replicas replicas_at_home, replicas_elsewhere;
  for (const auto& [rank, said] : reports) {
    const int32_t replica = CoordinatesOf(layout, rank).data;
    if (!said.origin.empty()) {
      at_home.push_back(rank);
      replicas_at_home.insert(replica);
    }
    if (said.elsewhere.has_value() && !said.elsewhere->origin.empty()) {
      elsewhere.push_back(rank);
      replicas_elsewhere.insert(replica);
    }
  }
  // If all replicas make bad values, the model does, and no rank is to blame.
  if (replicas_at_home.empty() ||
      static_cast<int32_t>(replicas_at_home.size()) == layout.data) {
    return;
  }
  if (verdict.passed_elsewhere) {
    verdict.cause = BadStepCause::kDevices;
    verdict.suspects = at_home;
  } else if (replicas_elsewhere == replicas_at_home) {
    std::set_intersection(at_home.begin(), at_home.end(), elsewhere.begin(),
                          elsewhere.end(),
                          std::back_inserter(verdict.suspects));
    // None if it began in another rank of the same replica each time.
    if (!verdict.suspects.empty()) verdict.cause = BadStepCause::kDevices;
  } else if (replicas_elsewhere == OnesBefore(replicas_at_home, layout.data)) {
    verdict.cause = BadStepCause::kSamples;
  }
}

}  // namespace

bool CanExchangeSamples(const Layout& layout) {
  return layout.data > 1 && !layout.is_uneven();
}

void BadSteps::Begin(const Layout& layout) {
  layout_ = layout;
  reports_.clear();
  // Steps that are trained again are counted again.
  last_skipped_ = -1;
  num_in_row_ = 0;
}

std::optional<BadStepVerdict> BadSteps::Note(Rank rank,
                                             const BadStepReport& report) {
  auto& of_step = reports_[report.step];
  of_step[rank] = report;
  if (static_cast<int32_t>(of_step.size()) < layout_.num_ranks()) {
    return std::nullopt;
  }
  BadStepVerdict verdict = {
      .step = report.step, .passed = true, .passed_elsewhere = true};
  for (const auto& [member, said] : of_step) {
    verdict.passed = verdict.passed && said.passed;
    verdict.passed_elsewhere = verdict.passed_elsewhere &&
                               said.elsewhere.has_value() &&
                               said.elsewhere->passed;
    if (!said.origin.empty()) verdict.origins.emplace_back(member, said.origin);
    if (said.largest_amax > verdict.largest_amax) {
      verdict.largest_amax = said.largest_amax;
      verdict.largest_in = said.largest_in;
      verdict.largest_on = member;
    }
  }
  if (!verdict.passed) FindCause(layout_, of_step, verdict);
  reports_.erase(reports_.begin(), reports_.upper_bound(report.step));
  if (!verdict.passed && !verdict.passed_elsewhere) {
    num_in_row_ = report.step == last_skipped_ + 1 ? num_in_row_ + 1 : 1;
    last_skipped_ = report.step;
    verdict.num_in_row = num_in_row_;
  }
  return verdict;
}

}  // namespace millrace
