#include "planner/job/subnet.h"

#include <arpa/inet.h>

#include <string>

#include "absl/strings/numbers.h"

namespace millrace {
namespace {

// Sets family and bytes.
bool ReadAddress(absl::string_view text, Subnet* result) {
  const std::string address(text);
  result->is_ipv6 = address.find(':') != std::string::npos;
  return inet_pton(result->is_ipv6 ? AF_INET6 : AF_INET, address.c_str(),
                   result->bytes.data()) == 1;
}

bool ReadPort(absl::string_view text, int32_t* port) {
  return absl::SimpleAtoi(text, port) && *port >= 1 && *port <= 65535;
}

}  // namespace

bool Subnet::Contains(absl::string_view address) const {
  Subnet other;
  if (!ReadAddress(address, &other) || other.is_ipv6 != is_ipv6) return false;
  for (int32_t bit = 0; bit < num_bits; ++bit) {
    const uint8_t mask = static_cast<uint8_t>(0x80 >> (bit % 8));
    if ((bytes[bit / 8] & mask) != (other.bytes[bit / 8] & mask)) return false;
  }
  return true;
}

std::optional<Subnet> ParseSubnet(absl::string_view text) {
  Subnet result;
  const size_t slash = text.find('/');
  if (slash == absl::string_view::npos ||
      !ReadAddress(text.substr(0, slash), &result) ||
      !absl::SimpleAtoi(text.substr(slash + 1), &result.num_bits) ||
      result.num_bits < 0 || result.num_bits > (result.is_ipv6 ? 128 : 32)) {
    return std::nullopt;
  }
  return result;
}

std::optional<PortRange> ParsePorts(absl::string_view text) {
  if (text.empty()) return PortRange{};
  PortRange result;
  const size_t dash = text.find('-');
  if (!ReadPort(text.substr(0, dash), &result.first)) return std::nullopt;
  result.last = result.first;
  if (dash != absl::string_view::npos &&
      (!ReadPort(text.substr(dash + 1), &result.last) ||
       result.last < result.first)) {
    return std::nullopt;
  }
  return result;
}

}  // namespace millrace
