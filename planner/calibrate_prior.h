// What calibration (planner/calibrate.h, planner/calibrate_profile.h) thinks
// possible before any run is seen, and the linear algebra under it.

#ifndef MILLRACE_PLANNER_CALIBRATE_PRIOR_H_
#define MILLRACE_PLANNER_CALIBRATE_PRIOR_H_

#include <string>
#include <vector>

namespace millrace {

// Variance of log(true / listed) of a profile's constant, by its name.
double VarianceOfConstant(const std::string& name);

// Standard deviation of what no other run says anything about: noise between
// repetitions of a run.
inline constexpr double kOwnError = 0.008;

// Sum over weights[i] a[i] b[i]; equally long.
double WeightedDot(const std::vector<double>& weights,
                   const std::vector<double>& a, const std::vector<double>& b);

// Weights w of a Gaussian process's mean at its own points, covariance x w +
// noise x w = values, and each point's residual noise x w. Points whose
// residual is beyond what noise allows count less, by Huber's weights.
struct RobustWeights {
  std::vector<double> weights;
  std::vector<double> residuals;
};
// `covariance` row-major, symmetric and positive semidefinite; `noise` the
// variance of each value, above zero.
RobustWeights SolveRobustly(const std::vector<double>& covariance,
                            const std::vector<double>& values, double noise);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_CALIBRATE_PRIOR_H_
