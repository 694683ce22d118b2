// Work that threads share out among themselves, and how it is ended early.

#ifndef MILLRACE_BASE_PARALLEL_H_
#define MILLRACE_BASE_PARALLEL_H_

#include <cstdint>
#include <functional>
#include <stop_token>

#include "absl/status/status.h"

namespace millrace {

// Calls work(0) to work(count - 1), each once, on up to `num_threads` threads
// at a time, the caller's among them; a thread that is done with one takes the
// next. After an error no further one is begun. Returns, once all that was
// begun has ended, the error of the lowest index.
absl::Status ParallelFor(int64_t count, int num_threads,
                         const std::function<absl::Status(int64_t)>& work);

// Cancelled once a stop is requested. Long work asks this every few
// milliseconds and returns the error. A default-constructed token never stops
// anything.
absl::Status CheckNotStopped(const std::stop_token& stop);

// Threads for moving much memory, which one core does at a fraction of what the
// memory could: what this machine has, eight at most.
int NumCopyThreads();

// Threads for work that the cores' arithmetic bounds: the cores this process
// may run on, 64 at most.
int NumComputeThreads();

}  // namespace millrace

#endif  // MILLRACE_BASE_PARALLEL_H_
