#include "planner/job/subnet.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

// Goal: an address is in a subnet if its first bits are. Method: prefixes that
// end within a byte, at its end, and nowhere.
TEST(SubnetTest, ContainsAddresses) {
  const auto contains = [](const char* subnet, const char* address) {
    const auto parsed = ParseSubnet(subnet);
    return parsed.has_value() && parsed->Contains(address);
  };
  EXPECT_TRUE(contains("10.0.0.0/8", "10.255.0.1"));
  EXPECT_FALSE(contains("10.0.0.0/8", "11.0.0.1"));
  EXPECT_TRUE(contains("10.4.0.0/14", "10.7.1.1"));
  EXPECT_FALSE(contains("10.4.0.0/14", "10.8.1.1"));
  EXPECT_TRUE(contains("0.0.0.0/0", "8.8.8.8"));
  EXPECT_FALSE(contains("0.0.0.0/0", "fd00::1"));
  EXPECT_TRUE(contains("fd00::/64", "fd00::ffff:1"));
  EXPECT_FALSE(contains("fd00::/64", "fd00:0:0:1::1"));
  EXPECT_FALSE(contains("10.0.0.0/8", "no address"));
}

TEST(SubnetTest, RefusesWhatIsNone) {
  for (const char* text : {"", "10.0.0.1", "10.0.0.0/33", "10.0.0.0/-1",
                           "10.0.0/8", "fd00::/129", "fd00::/", "x/8"}) {
    EXPECT_FALSE(ParseSubnet(text).has_value()) << text;
  }
}

TEST(PortRangeTest, ReadsRanges) {
  ASSERT_TRUE(ParsePorts("").has_value());
  EXPECT_EQ(ParsePorts("")->first, 0);
  EXPECT_EQ(ParsePorts("20000")->last, 20000);
  EXPECT_EQ(ParsePorts("20000-20010")->first, 20000);
  EXPECT_EQ(ParsePorts("20000-20010")->last, 20010);
  for (const char* text : {"0", "65536", "5-4", "a", "1-", "-1", "1-2-3"}) {
    EXPECT_FALSE(ParsePorts(text).has_value()) << text;
  }
}

}  // namespace
}  // namespace millrace
