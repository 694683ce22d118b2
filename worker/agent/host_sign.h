// Reads what a host says of itself that may slow a rank down.

#ifndef MILLRACE_WORKER_AGENT_HOST_SIGN_H_
#define MILLRACE_WORKER_AGENT_HOST_SIGN_H_

#include "absl/strings/string_view.h"
#include "fault/slow_cause.h"

namespace millrace {

// Takes some 0.1 ms. Call it at intervals of a second or so: shares are those
// since the call before.
class HostSignReader {
 public:
  HostSign Read();

 private:
  double stolen_ = -1;  // At the call before; below zero: there was none.
  double all_ = 0;
};

// For tests: the parts of /proc. Below zero if the text has no such value.
double ParsePressure(absl::string_view pressure);  // "some avg10", as a share.
double ParseMegahertz(absl::string_view cpuinfo);
struct StolenTime {
  double stolen = 0;  // In ticks, as all.
  double all = 0;
};
StolenTime ParseStolenTime(absl::string_view proc_stat);

}  // namespace millrace

#endif  // MILLRACE_WORKER_AGENT_HOST_SIGN_H_
