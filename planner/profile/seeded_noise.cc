#include "planner/profile/seeded_noise.h"

#include <boost/math/distributions/normal.hpp>
#include <cmath>

#include "base/check.h"

namespace millrace {
namespace {

constexpr uint64_t kMachineStream = 0x6d616368696e6573u;

}  // namespace

double NormalQuantile(double probability) {
  CHECK(probability > 0 && probability < 1) << probability;
  return boost::math::quantile(boost::math::normal(), probability);
}

double LargestOfNormals(double count) {
  return NormalQuantile((count - 0.375) / (count + 0.25));
}

LogNormalFactors::LogNormalFactors(double sigma) : sigma_(sigma) {
  CHECK(sigma >= 0) << sigma;
  table_.assign(kCells + 1, 1);
  for (int32_t i = kExactCells; i <= kCells - kExactCells; ++i) {
    table_[i] = Exact(static_cast<double>(i) / kCells);
  }
}

double LogNormalFactors::Exact(double uniform) const {
  // E e^(sigma Z) = e^(sigma^2 / 2).
  return std::exp(sigma_ * NormalQuantile(uniform) - sigma_ * sigma_ / 2);
}

std::vector<double> DrawMachines(const MachineDraw& draw,
                                 const std::vector<double>& known,
                                 int32_t* num_slow) {
  std::vector<double> factors(draw.num_machines, 1);
  *num_slow = 0;
  for (int32_t i = 0; i < draw.num_machines; ++i) {
    if (static_cast<size_t>(i) < known.size()) factors[i] = known[i];
    const double uniform = RandomUniform(draw.seed ^ kMachineStream, i);
    if (uniform < draw.share) factors[i] *= draw.factor;
    if (factors[i] > 1) ++*num_slow;
  }
  return factors;
}

}  // namespace millrace
