// A run's steps as a trace to look at in Perfetto or chrome://tracing: what was
// measured beside what was predicted.

#ifndef MILLRACE_COORDINATOR_REPORT_REPORT_TRACE_H_
#define MILLRACE_COORDINATOR_REPORT_REPORT_TRACE_H_

#include <string>

#include "absl/status/status.h"

namespace millrace {

// Writes the measured and the predicted step of `run_directory`, those of them
// that are there, to `path`, in the Trace Event Format: a process a rank and
// step, a thread a lane, a slice an instruction. NotFound if there is no
// timeline or no Program; InvalidArgument or DataLoss name a damaged file.
absl::Status WriteRunTrace(const std::string& run_directory,
                           const std::string& path);

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_REPORT_REPORT_TRACE_H_
