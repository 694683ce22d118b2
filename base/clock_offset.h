// How far two hosts' clocks are apart, by the exchange of NTP (RFC 5905,
// section 8): each exchange gives an offset that is off by at most half of its
// round trip, so the one with the smallest round trip counts.

#ifndef MILLRACE_BASE_CLOCK_OFFSET_H_
#define MILLRACE_BASE_CLOCK_OFFSET_H_

#include <cstdint>
#include <vector>

namespace millrace {

// Four times in nanoseconds: the outer ones by this host's clock, the inner
// ones by the other's.
struct ClockExchange {
  int64_t asked;
  int64_t received;
  int64_t answered;
  int64_t arrived;
};

struct ClockOffset {
  double seconds = 0;      // The other's clock less this one's.
  double uncertainty = 0;  // Half of the smallest round trip, in seconds.
};

// At least one exchange.
ClockOffset OffsetOf(const std::vector<ClockExchange>& exchanges);

// Seconds from asking to the answer, without the other's time in between.
double RoundTripOf(const ClockExchange& exchange);

}  // namespace millrace

#endif  // MILLRACE_BASE_CLOCK_OFFSET_H_
