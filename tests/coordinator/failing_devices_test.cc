#include "coordinator/failing_devices.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr WorkerIdx kDevice{3};

// Goal: two failures within an hour leave a device out, and two that lie
// further apart do not. Each time is twice as long as the one before, up to a
// limit.
TEST(FailingDevicesTest, TwoFailuresWithinAnHour) {
  FailingDevices devices(absl::Minutes(10));
  absl::Time now = absl::UnixEpoch();
  EXPECT_EQ(devices.NoteFailure(kDevice, now), std::nullopt);
  EXPECT_EQ(devices.NoteFailure(WorkerIdx{4}, now), std::nullopt);
  now += absl::Minutes(61);
  EXPECT_EQ(devices.NoteFailure(kDevice, now), std::nullopt);
  for (int minutes : {10, 20, 40, 80, 160, 320, 640, 640}) {
    now += absl::Minutes(59);
    EXPECT_EQ(devices.NoteFailure(kDevice, now), absl::Minutes(minutes));
  }
}

TEST(FailingDevicesTest, ZeroLeavesNoneOut) {
  FailingDevices devices(absl::ZeroDuration());
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(devices.NoteFailure(kDevice, absl::UnixEpoch()), std::nullopt);
  }
}

// Goal: devices come back when their time is over, or all at once.
TEST(FailingDevicesTest, ComeBackWhenTheirTimeIsOver) {
  FailingDevices devices(absl::Minutes(10));
  const absl::Time now = absl::UnixEpoch();
  devices.LeaveOut({WorkerIdx{1}, kDevice}, now + absl::Minutes(10));
  devices.LeaveOut({kDevice}, now + absl::Minutes(20));
  EXPECT_TRUE(devices.IsLeftOut(WorkerIdx{1}));
  EXPECT_FALSE(devices.IsLeftOut(WorkerIdx{2}));
  EXPECT_EQ(devices.NumOver(now), 0);
  const absl::Time later = now + absl::Minutes(10);
  EXPECT_TRUE(devices.MayComeBack(WorkerIdx{1}, later));
  EXPECT_FALSE(devices.MayComeBack(kDevice, later));
  EXPECT_EQ(devices.NumOver(later), 1);
  devices.TakeBackThoseOver(later);
  EXPECT_THAT(devices.left_out(), ElementsAre(kDevice));
  devices.TakeBackAll();
  EXPECT_THAT(devices.left_out(), IsEmpty());
}

}  // namespace
}  // namespace millrace
