// The prior of calibration (planner/evaluate/calibrate_predictions.h,
// planner/evaluate/calibrate_profile.h) and the linear algebra of its Gaussian
// process. The prior states how wrong each constant may be before any run is
// seen.

#ifndef MILLRACE_PLANNER_LEARN_GAUSSIAN_PROCESS_H_
#define MILLRACE_PLANNER_LEARN_GAUSSIAN_PROCESS_H_

#include <string>
#include <vector>

namespace millrace {

// Returns the standard deviation of log(true / listed) of the profile's
// constant of this name. It holds for installations like those whose runs the
// constant was fitted to.
double DeviationOfConstant(const std::string& name);
// Returns the same for any installation, whose setup may differ much.
double DeviationElsewhere(const std::string& name);

// Standard deviation of the error that a run shares with no other run. It
// covers noise between repetitions of a run (0.005 to 0.03 in MLPerf's logs)
// and errors of the model in one layout alone. It was chosen by calibrating
// with two random runs of each group of tests/data/published_runs.
inline constexpr double kOwnError = 0.02;

// Returns the sum of a[i] b[i]. Both vectors must have one length.
double Dot(const std::vector<double>& a, const std::vector<double>& b);

// The solution of a Gaussian process at its own points. `weights` solve
// covariance x w + noise x w = values; `residuals` are noise x w.
//
// The solution is robust: the noise of an outlier is widened, so that a value
// beyond the expected noise counts the less the further off it is. Its weight
// falls with the square of its residual, as under Student's distribution.
struct RobustWeights {
  std::vector<double> weights;
  std::vector<double> residuals;
};
// `covariance` is row-major, symmetric and positive semidefinite. `noise` is
// the variance of each value and must be above zero.
RobustWeights SolveRobustly(const std::vector<double>& covariance,
                            const std::vector<double>& values, double noise);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_LEARN_GAUSSIAN_PROCESS_H_
