// Random times for simulations. Equal seeds give equal draws on every machine,
// in whatever order they are made.

#ifndef MILLRACE_PLANNER_PROFILE_SEEDED_NOISE_H_
#define MILLRACE_PLANNER_PROFILE_SEEDED_NOISE_H_

#include <cstdint>
#include <vector>

namespace millrace {

// Returns number `index` of a stream of uniformly distributed 64-bit numbers
// (SplitMix64, Steele et al., 2014).
inline uint64_t RandomBits(uint64_t stream, uint64_t index) {
  uint64_t bits = stream + (index + 1) * 0x9e3779b97f4a7c15u;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
  return bits ^ (bits >> 31);
}
// Returns a number in (0, 1).
inline double RandomUniform(uint64_t stream, uint64_t index) {
  return (static_cast<double>(RandomBits(stream, index) >> 12) + 0.5) * 0x1p-52;
}

// Returns z with P(Z <= z) = probability for a standard normal Z. `probability`
// must lie in (0, 1).
double NormalQuantile(double probability);
// Returns nearly the expected maximum of `count` draws of a standard normal
// (Blom, "Statistical Estimates and Transformed Beta-Variables", 1958).
double LargestOfNormals(double count);

// Turns uniform draws into log-normal factors of mean 1; sigma is the standard
// deviation of their logarithm. Quantiles come from a table, the outermost ones
// are computed.
class LogNormalFactors {
 public:
  explicit LogNormalFactors(double sigma);  // At least 0.

  double At(double uniform) const {
    const double position = uniform * kCells;
    const auto cell = static_cast<int32_t>(position);
    if (cell < kExactCells || cell >= kCells - kExactCells) {
      return Exact(uniform);
    }
    const double share = position - cell;
    return table_[cell] + share * (table_[cell + 1] - table_[cell]);
  }

 private:
  static constexpr int32_t kCells = 4096;
  static constexpr int32_t kExactCells = 8;  // At each end.

  double Exact(double uniform) const;

  double sigma_;
  std::vector<double> table_;  // At multiples of 1 / kCells.
};

// Draws a compute slow-down factor for each machine. Machines in `known` have
// their factor, the others 1. In addition, a random share of all machines is
// slower by `factor`. *num_slow counts the machines above 1.
struct MachineDraw {
  int32_t num_machines;
  double share;
  double factor;
  uint64_t seed;
};
std::vector<double> DrawMachines(const MachineDraw& draw,
                                 const std::vector<double>& known,
                                 int32_t* num_slow);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_PROFILE_SEEDED_NOISE_H_
