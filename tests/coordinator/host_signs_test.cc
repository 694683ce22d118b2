#include "coordinator/host_signs.h"

#include <gtest/gtest.h>

#include "worker/agent/host_sign.h"

namespace millrace {
namespace {

// Goal: what a worker sends arrives, every value as itself, and values that are
// not known stay unknown. Method: each value is another number.
TEST(HostSignsTest, ArriveAsTheyWereSent) {
  const HostSign all = {.megahertz = 2400,
                        .num_throttles = 2,
                        .steal_share = 0.3,
                        .processor_pressure = 0.4,
                        .memory_pressure = 0.5,
                        .gpu = {.present = 1,
                                .clock_mhz = 7,
                                .throttle_reasons = 8,
                                .corrected_errors = 9,
                                .uncorrected_errors = 10,
                                .remap_pending = 11,
                                .remap_failed = 12,
                                .nvlinks = 13,
                                .active_nvlinks = 14,
                                .nvlink_errors = 15,
                                .pcie_width = 16}};
  for (const HostSign& sent :
       {all, HostSign{}, HostSign{.gpu = {.present = 0}}}) {
    protocol::HostSign message;
    ToMessage(sent, &message);
    EXPECT_EQ(SignFromMessage(message), sent);
  }
}

}  // namespace
}  // namespace millrace
