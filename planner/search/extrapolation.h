// Measures which share of a predicted step was priced beyond the shapes in a
// profile's tables, and warns of it.

#ifndef MILLRACE_PLANNER_SEARCH_EXTRAPOLATION_H_
#define MILLRACE_PLANNER_SEARCH_EXTRAPOLATION_H_

#include <span>
#include <string>

#include "planner/cost/op_cost.h"
#include "planner/program/program.h"
#include "planner/search/plan.h"

namespace millrace {

// A plan says what was extrapolated from this share of its ops' time on.
inline constexpr double kLeastExtrapolatedShare = 0.05;

struct Extrapolation {
  // Share, from 0 to 1, of the time of all device instructions that those take
  // whose shapes lie beyond the rows. A product, attention or head with the
  // loss is beyond them if no row of its kind has every dim within a factor of
  // 2. An op that moves bytes is beyond them below half of the smallest row of
  // its kind or above twice the largest. Communication between hosts is beyond
  // rows that were all measured on one. Kinds without any row are not counted
  // (CostModel::KindsWithoutRows), and neither are ops that formulas price. 0
  // for a profile without tables.
  double share = 0;
  std::string most;  // KindText() of what most of it is; empty where it is 0.
};

// `programs` are of all stages of one layout.
Extrapolation ExtrapolationOf(std::span<const Program> programs,
                              const CostModel& cost);

// Warns in the plan of what was extrapolated, and moves the bounds of its step
// time, if it has any, apart in proportion to the share, by chosen widths. Does
// nothing below kLeastExtrapolatedShare.
void SayWhatWasExtrapolated(std::span<const Program> programs,
                            const CostModel& cost, Plan* plan);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_SEARCH_EXTRAPOLATION_H_
