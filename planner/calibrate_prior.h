// What calibration (planner/calibrate.h, planner/calibrate_profile.h) thinks
// possible before any run is seen, and the linear algebra under it.

#ifndef MILLRACE_PLANNER_CALIBRATE_PRIOR_H_
#define MILLRACE_PLANNER_CALIBRATE_PRIOR_H_

#include <cstdint>
#include <string>
#include <vector>

namespace millrace {

// Standard deviation of log(true / listed) of a profile's constant, by its
// name, on an installation like those whose runs it was fitted to.
double DeviationOfConstant(const std::string& name);
// The same on any installation, which may be set up quite otherwise.
double DeviationElsewhere(const std::string& name);

// Standard deviation of what no other run says anything about: noise between
// repetitions of a run.
inline constexpr double kOwnError = 0.008;

// Sum over a[i] b[i]; equally long.
double Dot(const std::vector<double>& a, const std::vector<double>& b);

// How hard a value pulls whose residual is beyond what noise allows: as one at
// that edge (Huber's weights), or less the further off it is (weights that fall
// with the residual's square, as under Student's distribution).
enum class OutlierPull : uint8_t { kSteady, kFading };

// Weights w of a Gaussian process's mean at its own points, covariance x w +
// noise x w = values, and each point's residual noise x w, where noise is wider
// for outliers.
struct RobustWeights {
  std::vector<double> weights;
  std::vector<double> residuals;
};
// `covariance` row-major, symmetric and positive semidefinite; `noise` the
// variance of each value, above zero.
RobustWeights SolveRobustly(const std::vector<double>& covariance,
                            const std::vector<double>& values, double noise,
                            OutlierPull pull);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_CALIBRATE_PRIOR_H_
