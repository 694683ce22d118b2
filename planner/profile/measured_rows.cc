#include "planner/profile/measured_rows.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <tuple>

#include "base/check.h"

namespace millrace {
namespace {

// More neighbours would only blur. On the grids that profiles measure, the
// fourth nearest GEMM is already twice as large in some dim.
constexpr int kNumNeighbours = 3;

}  // namespace

double SquaredLogRatio(int64_t a, int64_t b) {
  const double difference =
      std::log(static_cast<double>(a) / static_cast<double>(b));
  return difference * difference;
}

double GroupSizeFactor(int64_t from, int64_t to) {
  const auto share = [](int64_t size) {
    return static_cast<double>(size - 1) / static_cast<double>(size);
  };
  return from == to || from < 2 || to < 2 ? 1 : share(to) / share(from);
}

double RateFromNeighbours(std::vector<Neighbour> neighbours) {
  const size_t count =
      std::min<size_t>(neighbours.size(), static_cast<size_t>(kNumNeighbours));
  std::partial_sort(
      neighbours.begin(), neighbours.begin() + static_cast<ptrdiff_t>(count),
      neighbours.end(), [](const Neighbour& a, const Neighbour& b) {
        return std::tie(a.squared_distance, a.rate) <
               std::tie(b.squared_distance, b.rate);
      });
  if (neighbours[0].squared_distance < 1e-12) return neighbours[0].rate;
  double weight_sum = 0, rate_sum = 0;
  for (size_t i = 0; i < count; ++i) {
    const double weight = 1 / neighbours[i].squared_distance;
    weight_sum += weight;
    rate_sum += weight * neighbours[i].rate;
  }
  return rate_sum / weight_sum;
}

double InterpolateSeconds(std::span<const SizedTime> times, double bytes) {
  CHECK(!times.empty());
  const auto above =
      std::ranges::lower_bound(times, bytes, {}, &SizedTime::bytes);
  if (above == times.end()) {
    return times.back().seconds * bytes / times.back().bytes;
  }
  if (above->bytes == bytes) return above->seconds;
  if (above == times.begin()) return above->seconds * bytes / above->bytes;
  const SizedTime& below = *std::prev(above);
  const double share =
      std::log(bytes / below.bytes) / std::log(above->bytes / below.bytes);
  return below.seconds * std::pow(above->seconds / below.seconds, share);
}

}  // namespace millrace
