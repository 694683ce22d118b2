// Decides which of a few measurements of one thing to believe.

#ifndef MILLRACE_PLANNER_LEARN_OUTLIERS_H_
#define MILLRACE_PLANNER_LEARN_OUTLIERS_H_

#include <span>
#include <vector>

namespace millrace {

// True for the values no further than three scaled median absolute deviations
// (Hampel, 1974), or 15 % where they hardly scatter, from the median.
// `log_ratios` are logarithms of measured over expected. Two values that
// contradict each other have what was expected for a third, or nothing would
// tell which of them is odd.
std::vector<bool> AreCredible(std::span<const double> log_ratios);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_LEARN_OUTLIERS_H_
