#include "base/clock_offset.h"

#include <algorithm>

#include "base/check.h"

namespace millrace {
namespace {

constexpr double kNanosecond = 1e-9;

}  // namespace

double RoundTripOf(const ClockExchange& exchange) {
  return kNanosecond *
         static_cast<double>((exchange.arrived - exchange.asked) -
                             (exchange.answered - exchange.received));
}

ClockOffset OffsetOf(const std::vector<ClockExchange>& exchanges) {
  CHECK(!exchanges.empty());
  const ClockExchange& best =
      *std::min_element(exchanges.begin(), exchanges.end(),
                        [](const ClockExchange& a, const ClockExchange& b) {
                          return RoundTripOf(a) < RoundTripOf(b);
                        });
  // The differences are taken first: times since 1970 fill the integers.
  const double there = static_cast<double>(best.received - best.asked);
  const double back = static_cast<double>(best.answered - best.arrived);
  return {.seconds = kNanosecond * (there + back) / 2,
          .uncertainty = RoundTripOf(best) / 2};
}

}  // namespace millrace
