// The prior of calibration (planner/evaluate/calibrate_predictions.h,
// planner/evaluate/calibrate_profile.h) and the linear algebra of its Gaussian
// process. The prior says how far each constant may be off before any run is
// seen.

#ifndef MILLRACE_PLANNER_LEARN_GAUSSIAN_PROCESS_H_
#define MILLRACE_PLANNER_LEARN_GAUSSIAN_PROCESS_H_

#include <string>
#include <vector>

namespace millrace {

// Standard deviation of log(true / listed) of a profile's constant, by its
// name, on an installation like those whose runs it was fitted to.
double DeviationOfConstant(const std::string& name);
// The same on any installation, which may be set up quite otherwise.
double DeviationElsewhere(const std::string& name);

// Standard deviation of what no other run says anything about: noise between
// repetitions of a run (0.005 to 0.03 in MLPerf's logs), and what the model is
// off by in one layout alone. Chosen by calibrating with two runs of each group
// of tests/data/published_runs at random.
inline constexpr double kOwnError = 0.02;

// Sum over a[i] b[i]; equally long.
double Dot(const std::vector<double>& a, const std::vector<double>& b);

// Weights w of a Gaussian process's mean at its own points, covariance x w +
// noise x w = values, and each point's residual noise x w, where noise is wider
// for outliers: a value whose residual is beyond what noise allows pulls less
// the further off it is (weights that fall with the residual's square, as under
// Student's distribution).
struct RobustWeights {
  std::vector<double> weights;
  std::vector<double> residuals;
};
// `covariance` row-major, symmetric and positive semidefinite; `noise` the
// variance of each value, above zero.
RobustWeights SolveRobustly(const std::vector<double>& covariance,
                            const std::vector<double>& values, double noise);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_LEARN_GAUSSIAN_PROCESS_H_
