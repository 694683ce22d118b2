// Figures that sum up a few measurements.

#ifndef MILLRACE_BASE_STATISTICS_H_
#define MILLRACE_BASE_STATISTICS_H_

#include <vector>

namespace millrace {

// The middle one, or the mean of the two in the middle. At least one value.
double MedianOf(std::vector<double> values);

// Interpolated between ranks: 0 is the least, 1 the greatest. At least one
// value.
double Quantile(std::vector<double> values, double share);

}  // namespace millrace

#endif  // MILLRACE_BASE_STATISTICS_H_
