#include "planner/fleet/device_pools.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/planner/planning_fixture.h"
#include "tests/planner/shipped.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Goal: clusters are read as written, and what is wrong is named. Method:
// texts.
TEST(DevicePoolsTest, ReadsClusters) {
  const auto one = ParsePools("122x8+3x7");
  ASSERT_TRUE(one.ok()) << one.status();
  ASSERT_EQ(one->size(), 1u);
  EXPECT_EQ(NumDevices(one->front().nodes), 997);
  const auto two = ParsePools("h100-sxm:4x8,a100-80gb:2x8+1x4");
  ASSERT_TRUE(two.ok()) << two.status();
  ASSERT_EQ(two->size(), 2u);
  EXPECT_EQ((*two)[1].profile, "a100-80gb");
  EXPECT_EQ(NumDevices((*two)[1].nodes), 20);
  for (const char* wrong : {"", "8", "0x8", "4x-1", "4x8+", "axb"}) {
    EXPECT_THAT(std::string(ParsePools(wrong).status().message()),
                HasSubstr("122x8+3x7"))
        << wrong;
  }
  EXPECT_THAT(std::string(ParsePools("4x8,a:4x8").status().message()),
              HasSubstr("one of which has no profile"));
}

// Goal: of two types the slower is used only where it helps. Method: a few slow
// devices beside many fast ones, and the reverse.
TEST(DevicePoolsTest, ChoosesWhichDevicesToUse) {
  const HardwareProfile fast = Shipped("h100-sxm");
  const HardwareProfile slow = Shipped("a100-80gb");
  const SearchInput input{.job = Llama8B(128)};
  const DevicePool many_fast[] = {
      {.profile = slow, .nodes = {{.nodes = 1, .devices = 8}}},
      {.profile = fast, .nodes = {{.nodes = 8, .devices = 8}}}};
  const auto alone = FindPlanForPools(input, many_fast);
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_LE(alone->layout.num_ranks(), 64);
  EXPECT_THAT(alone->warnings.front(), HasSubstr("uses 64 h100-sxm"));
  EXPECT_THAT(alone->warnings.front(), Not(HasSubstr("a100")));
  EXPECT_THAT(alone->warnings.back(), HasSubstr("a step takes"));
  const DevicePool many_slow[] = {
      {.profile = fast, .nodes = {{.nodes = 1, .devices = 8}}},
      {.profile = slow, .nodes = {{.nodes = 8, .devices = 8}}}};
  const auto together = FindPlanForPools(input, many_slow);
  ASSERT_TRUE(together.ok()) << together.status();
  EXPECT_GT(together->layout.num_ranks(), 8);
  EXPECT_THAT(together->warnings.front(), HasSubstr("64 a100-80gb"));
  const auto slower = SlowerOf(fast, slow);
  ASSERT_TRUE(slower.ok());
  EXPECT_EQ(slower->device.bf16_flops_per_s, slow.device.bf16_flops_per_s);
  HardwareProfile bare = slow;
  bare.device = {};
  EXPECT_THAT(std::string(SlowerOf(fast, bare).status().message()),
              HasSubstr("has no device section"));
}

}  // namespace
}  // namespace millrace
