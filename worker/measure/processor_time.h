// Reads the processor time that this host and this process have used. The
// difference shows how busy other processes kept the machine during a measured
// step.

#ifndef MILLRACE_WORKER_MEASURE_PROCESSOR_TIME_H_
#define MILLRACE_WORKER_MEASURE_PROCESSOR_TIME_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace millrace {

struct ProcessorTime {
  double clock_s = 0;          // When: of MonotonicSeconds().
  double busy_s = 0;           // All processors, any process; to a hundredth.
  double own_s = 0;            // For this process.
  int32_t num_processors = 0;  // 0: the kernel does not tell.
};

ProcessorTime ReadProcessorTime();
// busy_s and num_processors, of the text of /proc/stat.
ProcessorTime ParseProcessorTime(absl::string_view proc_stat,
                                 double ticks_per_second);

}  // namespace millrace

#endif  // MILLRACE_WORKER_MEASURE_PROCESSOR_TIME_H_
