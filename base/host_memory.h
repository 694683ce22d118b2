// How much of this host's memory this process may still take.

#ifndef MILLRACE_BASE_HOST_MEMORY_H_
#define MILLRACE_BASE_HOST_MEMORY_H_

#include <cstdint>
#include <optional>

namespace millrace {

// The machine's, or the control group's where that leaves less, as in a
// container. In bytes.
struct HostMemory {
  int64_t total = 0;
  // Bytes that can be taken without swapping. The cache of files counts.
  int64_t available = 0;
};

// Absent where the system does not say.
std::optional<HostMemory> ReadHostMemory();

}  // namespace millrace

#endif  // MILLRACE_BASE_HOST_MEMORY_H_
