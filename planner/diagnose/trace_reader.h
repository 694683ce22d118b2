// Reads what torch.profiler wrote (Kineto's JSON, in Chrome's trace format).
//
// The text is parsed as it streams by and never held: memory grows with the GPU
// events, their launches and, at 16 bytes each, the framework's operators, so
// that a trace of gigabytes with Python stacks is read in megabytes.

#ifndef MILLRACE_PLANNER_DIAGNOSE_TRACE_READER_H_
#define MILLRACE_PLANNER_DIAGNOSE_TRACE_READER_H_

#include <istream>
#include <string>

#include "absl/status/statusor.h"
#include "planner/diagnose/trace.h"

namespace millrace {

// "-" reads standard input. NotFound if there is no such file, else as
// ReadTrace.
absl::StatusOr<Trace> LoadTrace(const std::string& path);

// `name` is what errors call the input, which gzip may have packed. A trace
// without GPU events, steps or host calls is read as it is. Returns
// InvalidArgument for what is no trace, and DataLoss for one that ends early or
// is packed and damaged.
absl::StatusOr<Trace> ReadTrace(std::istream& input, const std::string& name);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_DIAGNOSE_TRACE_READER_H_
