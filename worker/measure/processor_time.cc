#include "worker/measure/processor_time.h"

#include <sys/resource.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/files.h"

namespace millrace {
namespace {

double SecondsOf(const timeval& time) {
  return static_cast<double>(time.tv_sec) +
         1e-6 * static_cast<double>(time.tv_usec);
}

}  // namespace

ProcessorTime ParseProcessorTime(absl::string_view proc_stat,
                                 double ticks_per_second) {
  // Columns of proc(5) that count as busy: user, nice and system, then after
  // idle and iowait irq, softirq and the time that a hypervisor gave to others.
  // Guests are included in user.
  constexpr size_t kBusyColumns[] = {1, 2, 3, 6, 7, 8};
  ProcessorTime time;
  for (const absl::string_view line : absl::StrSplit(proc_stat, '\n')) {
    if (!absl::StartsWith(line, "cpu")) continue;
    if (!absl::StartsWith(line, "cpu ")) {
      ++time.num_processors;
      continue;
    }
    const std::vector<absl::string_view> columns =
        absl::StrSplit(line, ' ', absl::SkipEmpty());
    for (const size_t column : kBusyColumns) {
      double ticks = 0;
      if (column < columns.size() &&
          absl::SimpleAtod(columns[column], &ticks)) {
        time.busy_s += ticks / ticks_per_second;
      }
    }
  }
  return time;
}

ProcessorTime ReadProcessorTime() {
  ProcessorTime time;
  const absl::StatusOr<std::string> text = ReadFile("/proc/stat");
  if (text.ok()) {
    time = ParseProcessorTime(*text, static_cast<double>(sysconf(_SC_CLK_TCK)));
  }
  rusage own{};
  getrusage(RUSAGE_SELF, &own);
  time.own_s = SecondsOf(own.ru_utime) + SecondsOf(own.ru_stime);
  time.clock_s = MonotonicSeconds();
  return time;
}

}  // namespace millrace
