// Reads the traces of torch.profiler (Kineto's JSON in Chrome's trace format).
//
// The text is parsed as it streams by and never held in memory. Memory grows
// with the GPU events, their launches and, at 16 bytes each, the framework's
// operators. So a trace of gigabytes with Python stacks is read in megabytes.

#ifndef MILLRACE_PLANNER_DIAGNOSE_TRACE_READER_H_
#define MILLRACE_PLANNER_DIAGNOSE_TRACE_READER_H_

#include <istream>
#include <string>

#include "absl/status/statusor.h"
#include "planner/diagnose/trace.h"

namespace millrace {

// Reads a file; "-" is standard input. Returns NotFound if there is no such
// file, else the errors of ReadTrace().
absl::StatusOr<Trace> LoadTrace(const std::string& path);

// Reads a trace, which may be packed by gzip. `name` is the input's name in
// errors. A trace without GPU events, steps or host calls is accepted. Returns
// InvalidArgument for input that is no trace, and DataLoss for a trace that
// ends early or is damaged.
absl::StatusOr<Trace> ReadTrace(std::istream& input, const std::string& name);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_DIAGNOSE_TRACE_READER_H_
