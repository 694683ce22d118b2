// How much of a predicted step is priced beyond what a profile's tables hold.

#ifndef MILLRACE_PLANNER_EXTRAPOLATION_H_
#define MILLRACE_PLANNER_EXTRAPOLATION_H_

#include <span>
#include <string>

#include "planner/cost.h"
#include "planner/program.h"
#include "planner/search.h"

namespace millrace {

// From so large a share of its ops' time on a plan says what was extrapolated.
inline constexpr double kLeastExtrapolatedShare = 0.05;

struct Extrapolation {
  // Of the time of all instructions of GPUs or other devices, from 0 to 1, what
  // instructions take whose shapes lie beyond the rows: products, attention and
  // the head with the loss where no row of their kind has every dim within a
  // factor of 2; what moves bytes where these are less than half of the
  // smallest row's of their kind, or more than twice the largest one's. Kinds
  // without any row are not counted (CostModel::KindsWithoutRows), nor is what
  // formulas price. 0 for a profile without tables.
  double share = 0;
  std::string most;  // KindText() of what most of it is; empty where it is 0.
};

// `programs` are of all stages of one layout.
Extrapolation ExtrapolationOf(std::span<const Program> programs,
                              const CostModel& cost);

// Adds to the plan's warnings what was extrapolated, and moves the bounds of
// its step time apart by how far such shapes were off
// (docs/results/2026-11-22-small-models-h200.md). Nothing below
// kLeastExtrapolatedShare.
void SayWhatWasExtrapolated(std::span<const Program> programs,
                            const CostModel& cost, Plan* plan);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_EXTRAPOLATION_H_
