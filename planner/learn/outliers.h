// Decides which of a few measurements of one thing to believe.

#ifndef MILLRACE_PLANNER_LEARN_OUTLIERS_H_
#define MILLRACE_PLANNER_LEARN_OUTLIERS_H_

#include <span>
#include <vector>

namespace millrace {

// Marks the values to believe. `log_ratios` are logarithms of measured over
// expected.
//
// A value is credible if it lies within three scaled median absolute deviations
// of the median (Hampel, 1974), or within 15 % if the values hardly scatter. If
// only two values are given and they contradict each other, the expected value
// counts as a third, since nothing else tells which of the two is odd.
std::vector<bool> AreCredible(std::span<const double> log_ratios);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_LEARN_OUTLIERS_H_
