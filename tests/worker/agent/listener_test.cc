#include "worker/agent/listener.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace millrace {
namespace {

using testing::HasSubstr;

// Goal: a port that cannot be had is named, with who chose it, and a range goes
// on to the next. Method: one listener takes a port, and others want it; an
// address of no host (RFC 5737).
TEST(ListenerTest, SaysWhichPortCannotBeHad) {
  const auto first = Listener::Create();
  ASSERT_TRUE(first.ok()) << first.status();
  const std::string& address = first->address();
  int32_t port = 0;
  ASSERT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port));
  const auto create = [](const std::string& host, int32_t from, int32_t to) {
    return Listener::Create({host}, {.range = {.first = from, .last = to},
                                     .origin = "network.ports"});
  };
  const absl::Status taken = create("127.0.0.1", port, port).status();
  EXPECT_TRUE(absl::IsUnavailable(taken)) << taken;
  EXPECT_EQ(
      taken.message(),
      absl::StrCat("port ", port, " (network.ports) is in use on this host"));
  const auto next = create("127.0.0.1", port, port + 200);
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_NE(next->address(), address);
  const absl::Status foreign = create("192.0.2.1", port, port).status();
  EXPECT_TRUE(absl::IsInvalidArgument(foreign)) << foreign;
  EXPECT_THAT(std::string(foreign.message()),
              HasSubstr(absl::StrCat("network.ports: cannot listen at "
                                     "192.0.2.1:",
                                     port)));
}

}  // namespace
}  // namespace millrace
