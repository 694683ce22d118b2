#include "worker/data/mixture.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace millrace {
namespace {

// [0, 1) in integers.
constexpr uint64_t kOne = uint64_t{1} << 32;
// The golden ratio's fractional part. It is odd, so that its first 2^32
// multiples are all different: after that many samples the sequence repeats.
constexpr uint64_t kGolden = 2654435769;

// The sum of floor((a i + b) / m) for i in [0, n), modulo 2^64. n, m, a and b
// are at most 2^32, so that nothing before the sum overflows. Each round swaps
// the roles of a and m, as Euclid's algorithm does: the sum counts the points
// below a line, and the points above it are those below the line's mirror
// image.
uint64_t SumOfFloors(uint64_t n, uint64_t m, uint64_t a, uint64_t b) {
  uint64_t sum = 0;
  while (n > 0) {
    sum += n * (b / m);
    b %= m;
    const uint64_t pairs = n % 2 == 0 ? n / 2 * (n - 1) : (n - 1) / 2 * n;
    sum += pairs * (a / m);
    a %= m;
    const uint64_t highest = a * n + b;
    n = highest / m;
    b = highest % m;
    std::swap(a, m);
  }
  return sum;
}

}  // namespace

absl::StatusOr<Mixture> Mixture::Make(const std::vector<double>& weights,
                                      uint64_t key) {
  CHECK(!weights.empty());
  double total = 0;
  for (const double weight : weights) {
    CHECK(weight > 0) << weight;
    total += weight;
  }
  std::vector<uint64_t> ends;
  double sum = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    sum += weights[i];
    const bool is_last = i + 1 == weights.size();
    const double end = std::round(sum / total * static_cast<double>(kOne));
    ends.push_back(is_last ? kOne : static_cast<uint64_t>(end));
    if (ends.back() == (i == 0 ? 0 : ends[i - 1]) || ends.back() > kOne) {
      return absl::InvalidArgumentError(
          absl::StrCat("data.sources[", i, "].weight: ", weights[i],
                       " is too little beside the sum of all weights, ", total,
                       ", ever to be drawn; raise it or remove the source"));
    }
  }
  return Mixture(std::move(ends), key % kOne);
}

Mixture::Pick Mixture::At(int64_t n) const {
  CHECK(n >= 0) << n;
  const uint64_t at =
      (first_ + static_cast<uint64_t>(n) % kOne * kGolden) % kOne;
  const auto end = std::upper_bound(ends_.begin(), ends_.end(), at);
  const auto source_idx = static_cast<size_t>(end - ends_.begin());
  return {.source_idx = source_idx, .number = NumBefore(source_idx, n)};
}

int64_t Mixture::NumBefore(size_t source_idx, int64_t n) const {
  const uint64_t begin = source_idx == 0 ? 0 : ends_[source_idx - 1];
  const uint64_t end = ends_[source_idx];
  const uint64_t count = static_cast<uint64_t>(n);
  const uint64_t rest = count % kOne;
  // (x + 1 - begin) and (x + 1 - end) have different integer parts where the
  // fractional part of x lies in [begin, end).
  const uint64_t in_rest =
      SumOfFloors(rest, kOne, kGolden, first_ + kOne - begin) -
      SumOfFloors(rest, kOne, kGolden, first_ + kOne - end);
  return static_cast<int64_t>(count / kOne * (end - begin) + in_rest);
}

}  // namespace millrace
