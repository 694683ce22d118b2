#include "planner/diagnose/intervals.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Goal: merging sorts, joins what overlaps, nests or touches, and drops what is
// empty or ends before it starts. Method: one list with each of them.
TEST(IntervalsTest, MergesAnyList) {
  EXPECT_THAT(
      MergeIntervals(
          {{50, 60}, {0, 10}, {5, 7}, {10, 12}, {20, 20}, {40, 30}, {11, 15}}),
      ElementsAre(Interval{0, 15}, Interval{50, 60}));
  EXPECT_THAT(MergeIntervals({}), IsEmpty());
}

// Goal: the difference cuts holes, and one hole may reach over two intervals.
// Method: a case drawn by hand.
TEST(IntervalsTest, SubtractsAcrossIntervals) {
  const TimeSet a = {{0, 10}, {20, 30}, {40, 50}};
  EXPECT_THAT(Subtract(a, {{2, 4}, {8, 22}, {25, 26}, {40, 50}}),
              ElementsAre(Interval{0, 2}, Interval{4, 8}, Interval{22, 25},
                          Interval{26, 30}));
  EXPECT_EQ(Subtract(a, {}), a);
  EXPECT_THAT(Subtract({}, a), IsEmpty());
}

// Goal: every operation is right on every point of time. Method: random lists
// over 64 points, compared with sets of points; seeds print with a failure.
TEST(IntervalsTest, AgreesWithPoints) {
  constexpr int kNumPoints = 64;
  const auto points_of = [](const std::vector<Interval>& intervals) {
    std::vector<bool> points(kNumPoints);
    for (const Interval& interval : intervals) {
      for (int64_t t = interval.start_ns; t < interval.end_ns; ++t) {
        points[t] = true;
      }
    }
    return points;
  };
  for (int seed = 0; seed < 500; ++seed) {
    std::mt19937 random(seed);
    const auto draw = [&random] {
      std::vector<Interval> intervals(random() % 8);
      for (Interval& interval : intervals) {
        interval.start_ns = random() % kNumPoints;
        interval.end_ns =
            std::min<int64_t>(kNumPoints, interval.start_ns + random() % 12);
      }
      return intervals;
    };
    const std::vector<Interval> raw_a = draw();
    const std::vector<Interval> raw_b = draw();
    const TimeSet a = MergeIntervals(raw_a);
    const TimeSet b = MergeIntervals(raw_b);
    const std::vector<bool> in_a = points_of(raw_a);
    const std::vector<bool> in_b = points_of(raw_b);
    std::vector<bool> either(kNumPoints), both(kNumPoints), only_a(kNumPoints);
    for (int t = 0; t < kNumPoints; ++t) {
      either[t] = in_a[t] || in_b[t];
      both[t] = in_a[t] && in_b[t];
      only_a[t] = in_a[t] && !in_b[t];
    }
    ASSERT_EQ(points_of(a), in_a) << "seed " << seed;
    ASSERT_EQ(points_of(Unite(a, b)), either) << "seed " << seed;
    ASSERT_EQ(points_of(Intersect(a, b)), both) << "seed " << seed;
    ASSERT_EQ(points_of(Subtract(a, b)), only_a) << "seed " << seed;
    // Disjoint, or the lengths would count a point twice.
    ASSERT_EQ(TotalNs(a), std::count(in_a.begin(), in_a.end(), true));
    ASSERT_EQ(TotalNs(Subtract(a, b)),
              std::count(only_a.begin(), only_a.end(), true));
  }
}

}  // namespace
}  // namespace millrace
