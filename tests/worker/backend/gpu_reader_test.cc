#include "worker/backend/gpu_reader.h"

#include <gtest/gtest.h>

#include "absl/time/clock.h"
#include "base/clock.h"
#include "tests/worker/backend/fake_gpus.h"

namespace millrace {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(20);

TEST(GpuReaderTest, ReadsOneAfterTheOther) {
  FakeGpus gpus;
  gpus.Set("0000:1b:00.0 clock_mhz 1980\n0000:1c:00.0 clock_mhz 1200\n");
  GpuReader reader(FakeGpus::Library());
  std::future<GpuReading> first = reader.Read("0000:1b:00.0");
  std::future<GpuReading> second = reader.Read("0000:1c:00.0");
  const auto taken = TakeReading(&second, kPatience);
  ASSERT_TRUE(taken.has_value());
  EXPECT_EQ(taken->sign.clock_mhz, 1200);
  EXPECT_GT(taken->seconds, 0);
  const auto earlier = TakeReading(&first, absl::ZeroDuration());
  ASSERT_TRUE(earlier.has_value()) << "it was asked for first";
  EXPECT_EQ(earlier->sign.clock_mhz, 1980);
  EXPECT_FALSE(TakeReading(&first, kPatience).has_value()) << "taken before";
}

TEST(GpuReaderTest, KnowsNothingWithoutADriver) {
  GpuReader reader("libno_nvml.so");
  std::future<GpuReading> reading = reader.Read("0000:1b:00.0");
  const auto taken = TakeReading(&reading, kPatience);
  ASSERT_TRUE(taken.has_value());
  EXPECT_LT(taken->sign.present, 0);
  EXPECT_FALSE(IsKnown(taken->sign));
}

// Goal: neither who asks nor who ends the reader waits for a driver that hangs.
TEST(GpuReaderTest, LeavesADriverThatHangs) {
  FakeGpus gpus;
  gpus.Set("0000:1b:00.0 sleep_ms 2000\n0000:1b:00.0 clock_mhz 1980\n");
  const absl::Time began = MonotonicNow();
  {
    GpuReader reader(FakeGpus::Library());
    std::future<GpuReading> reading = reader.Read("0000:1b:00.0");
    std::future<GpuReading> queued = reader.Read("0000:1b:00.0");
    EXPECT_FALSE(TakeReading(&reading, absl::Milliseconds(20)).has_value());
    EXPECT_LT(MonotonicNow() - began, absl::Seconds(1));
  }
  EXPECT_LT(MonotonicNow() - began, absl::Milliseconds(1900));
  absl::SleepFor(absl::Milliseconds(1500));  // Until the thread has ended.
}

}  // namespace
}  // namespace millrace
