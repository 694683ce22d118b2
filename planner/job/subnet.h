// Subnets and port ranges, as the job's `network` keys give them.

#ifndef MILLRACE_PLANNER_JOB_SUBNET_H_
#define MILLRACE_PLANNER_JOB_SUBNET_H_

#include <array>
#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace millrace {

struct Subnet {
  bool is_ipv6 = false;
  std::array<uint8_t, 16> bytes = {};  // The first four of IPv4.
  int32_t num_bits = 0;                // The length of the prefix.

  // False for what is no address.
  bool Contains(absl::string_view address) const;
};

// "10.0.0.0/8" or "fd00::/64". Nothing if it is not one.
std::optional<Subnet> ParseSubnet(absl::string_view text);

struct PortRange {
  int32_t first = 0;  // 0 and 0: any port.
  int32_t last = 0;
};

// "20000-20100" or "20000"; empty for any. Nothing if it is not one.
std::optional<PortRange> ParsePorts(absl::string_view text);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_JOB_SUBNET_H_
