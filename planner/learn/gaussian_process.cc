#include "planner/learn/gaussian_process.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <utility>

#include "absl/strings/match.h"
#include "base/check.h"

namespace millrace {
namespace {

// Standard deviations of log(true / listed) before any run is seen, for
// profiles whose constants were fitted to other runs on such machines.
// Constants of what happens once a step or once a kernel on the host differ
// most between installations.
struct Spread {
  const char* suffix;  // Suffix of the constant's name.
  double deviation;
  // Chosen by cross-validation: the runs of each model in
  // tests/data/published_runs were predicted from the runs of other models on
  // the machine. A factor of six for seconds was too wide. It moved step_s
  // eleven-fold and left the predictions worse than with the unchanged profile.
  double elsewhere;
};
constexpr Spread kConstantSpread[] = {
    {"_hidden_share", 0.05, 0.3}, {"_s", 0.2, 0.6}, {"_share", 0.02, 0.12}};

const Spread& SpreadOf(const std::string& name) {
  for (const Spread& spread : kConstantSpread) {
    if (absl::EndsWith(name, spread.suffix)) return spread;
  }
  return kConstantSpread[std::size(kConstantSpread) - 1];
}

// In standard deviations; values beyond are outliers.
constexpr double kEdge = 2;

// Solves a x = b by Cholesky's factors. `a` is row-major, symmetric and
// positive definite.
std::vector<double> SolveSymmetric(std::vector<double> a,
                                   std::vector<double> b) {
  const size_t n = b.size();
  for (size_t j = 0; j < n; ++j) {
    for (size_t i = j; i < n; ++i) {
      double sum = a[i * n + j];
      for (size_t k = 0; k < j; ++k) sum -= a[i * n + k] * a[j * n + k];
      if (i == j) {
        CHECK(sum > 0);
        a[j * n + j] = std::sqrt(sum);
      } else {
        a[i * n + j] = sum / a[j * n + j];
      }
    }
  }
  for (size_t i = 0; i < n; ++i) {
    for (size_t k = 0; k < i; ++k) b[i] -= a[i * n + k] * b[k];
    b[i] /= a[i * n + i];
  }
  for (size_t i = n; i-- > 0;) {
    for (size_t k = i + 1; k < n; ++k) b[i] -= a[k * n + i] * b[k];
    b[i] /= a[i * n + i];
  }
  return b;
}

}  // namespace

double DeviationOfConstant(const std::string& name) {
  return SpreadOf(name).deviation;
}

double DeviationElsewhere(const std::string& name) {
  return SpreadOf(name).elsewhere;
}

double Dot(const std::vector<double>& a, const std::vector<double>& b) {
  CHECK(a.size() == b.size());
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

RobustWeights SolveRobustly(const std::vector<double>& covariance,
                            const std::vector<double>& values, double noise) {
  const size_t n = values.size();
  CHECK(covariance.size() == n * n && noise > 0);
  std::vector<double> variances(n, noise);
  RobustWeights result{.weights = {}, .residuals = std::vector<double>(n)};
  constexpr int kNumRounds = 10;
  for (int round = 0; round < kNumRounds; ++round) {
    std::vector<double> matrix = covariance;
    for (size_t i = 0; i < n; ++i) matrix[i * n + i] += variances[i];
    result.weights = SolveSymmetric(std::move(matrix), values);
    for (size_t i = 0; i < n; ++i) {
      result.residuals[i] = variances[i] * result.weights[i];
    }
    for (size_t i = 0; i < n; ++i) {
      const double beyond = std::max(
          1.0, std::fabs(result.residuals[i]) / (kEdge * std::sqrt(noise)));
      variances[i] = noise * beyond * beyond;
    }
  }
  return result;
}

}  // namespace millrace
