#include "worker/measure/processor_time.h"

#include <cmath>

#include "base/clock.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

// Goal: idle and waiting processors are not busy. Method: the first lines of a
// /proc/stat, whose columns are told apart by their figures.
TEST(ProcessorTimeTest, ReadsTheKernelsText) {
  const ProcessorTime time = ParseProcessorTime(
      "cpu  100 20 3 5000 700 80 9 11 1000 2000\n"
      "cpu0 50 10 2 2500 350 40 5 6 0 0\n"
      "cpu1 50 10 1 2500 350 40 4 5 0 0\n"
      "intr 1 2 3\n",
      100);
  EXPECT_NEAR(time.busy_s, 2.23, 1e-9);
  EXPECT_EQ(time.num_processors, 2);
  EXPECT_EQ(ParseProcessorTime("", 100).num_processors, 0);
}

// Goal: what this process computes shows, and nobody's processors are busy for
// less. Method: compute for a third of a second.
TEST(ProcessorTimeTest, CountsThisProcess) {
  const ProcessorTime before = ReadProcessorTime();
  ASSERT_GT(before.num_processors, 0);
  volatile double sum = 0;
  while (ReadProcessorTime().own_s < before.own_s + 0.3) {
    for (int i = 1; i < 100000; ++i) sum = sum + std::sqrt(i);
  }
  const ProcessorTime after = ReadProcessorTime();
  EXPECT_GE(after.clock_s - before.clock_s, 0.29);
  // The kernel counts in hundredths.
  EXPECT_GE(after.busy_s - before.busy_s, 0.2);
}

}  // namespace
}  // namespace millrace
