// Monotonic time, and the date. Nothing in Millrace times with the wall clock,
// so a clock that is set back or forth never looks like a failure.

#ifndef MILLRACE_BASE_CLOCK_H_
#define MILLRACE_BASE_CLOCK_H_

#include "absl/time/time.h"

namespace millrace {

// An absl::Time that counts from an arbitrary start and never goes back. Only
// differences mean something; it is comparable within one machine.
absl::Time MonotonicNow();

// The same in seconds, for the hot path.
double MonotonicSeconds();

// Seconds since 1970 by the wall clock, to date what people read.
double UnixNow();

}  // namespace millrace

#endif  // MILLRACE_BASE_CLOCK_H_
