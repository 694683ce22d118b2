// Interpolates between the measured rows of a profile's tables.

#ifndef MILLRACE_PLANNER_PROFILE_MEASURED_ROWS_H_
#define MILLRACE_PLANNER_PROFILE_MEASURED_ROWS_H_

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "planner/profile/profile.h"
#include "planner/program/ops.h"

namespace millrace {

// A measured point, seen from the shape that is asked for.
struct Neighbour {
  double squared_distance;
  double rate;  // Work per second.
};

// The square of log(a / b).
double SquaredLogRatio(int64_t a, int64_t b);
// Distance to another kind: further than any size is from any other (e^10 in
// one dim).
inline constexpr double kOtherKindDistance = 100;

// Averages the nearest rates by inverse-distance weighting (Shepard 1968).
// `neighbours` must not be empty.
double RateFromNeighbours(std::vector<Neighbour> neighbours);

// The times of one kind, sorted by bytes.
struct SizedTime {
  double bytes;
  double seconds;
};

// Interpolates between the two sizes around `bytes`, in logarithms of both.
// Beyond the ends the time is proportional to the bytes.
double InterpolateSeconds(std::span<const SizedTime> times, double bytes);

template <typename Rows>
std::vector<SizedTime> RowsOfKind(const Rows& rows, OpKind kind) {
  std::vector<SizedTime> times;
  for (const auto& row : rows) {
    if (row.kind == kind) {
      times.push_back({static_cast<double>(row.bytes), row.seconds});
    }
  }
  return times;
}

// Whether rows differ in their bytes alone.
inline bool IsSameGroup(const CommunicationTime& a,
                        const CommunicationTime& b) {
  return a.kind == b.kind && a.group_size == b.group_size &&
         a.hosts == b.hosts && a.pairs == b.pairs;
}

// Distance between groups inside a host and across hosts: further than any
// other size, and nearer than another kind.
inline constexpr double kOtherLevelDistance = 50;

// The factor on the time of a collective in a group of `from` ranks of one host
// that makes it one in a group of `to`: a ring carries (n - 1) / n of the bytes
// over each link, at the same rate (Patarasuk and Yuan, 2009). Between two and
// four H200 the rate of 400 MB and more grew by 0 to 17 %. 1 where a group has
// one rank.
double GroupSizeFactor(int64_t from, int64_t to);

// Returns the rows of the nearest measured (kind, group size, hosts, pairs) to
// that of `of`. The same kind comes first, then one host or several. Inside one
// host the times are those that `of`'s group size would take. `rows` must not
// be empty. The result is sorted by bytes if `rows` is sorted by kind, group
// size, hosts, pairs and bytes.
template <typename Row>
std::vector<SizedTime> NearestRows(const std::vector<Row>& rows,
                                   const CommunicationTime& of) {
  const Row* nearest = nullptr;
  double nearest_distance = std::numeric_limits<double>::infinity();
  for (const Row& row : rows) {
    const double distance =
        SquaredLogRatio(row.group_size, of.group_size) +
        SquaredLogRatio(row.hosts, of.hosts) +
        SquaredLogRatio(row.pairs, of.pairs) +
        ((row.hosts > 1) == (of.hosts > 1) ? 0 : kOtherLevelDistance) +
        (row.kind == of.kind ? 0 : kOtherKindDistance);
    if (distance < nearest_distance) {
      nearest = &row;
      nearest_distance = distance;
    }
  }
  const double factor =
      nearest->hosts == 1 && of.hosts == 1 && nearest->kind != OpKind::kSend
          ? GroupSizeFactor(nearest->group_size, of.group_size)
          : 1;
  std::vector<SizedTime> times;
  for (const Row& row : rows) {
    if (IsSameGroup(row, *nearest)) {
      times.push_back({static_cast<double>(row.bytes), factor * row.seconds});
    }
  }
  return times;
}

}  // namespace millrace

#endif  // MILLRACE_PLANNER_PROFILE_MEASURED_ROWS_H_
