// Identifiers that must not be mixed up, as types of their own.

#ifndef MILLRACE_BASE_IDS_H_
#define MILLRACE_BASE_IDS_H_

#include <cstdint>

namespace millrace {

// Position of a worker among all workers of a job, in [0, world size).
enum class Rank : int32_t {};

// One membership of workers. Rises by one at every change; every message,
// communicator and checkpoint commit carries it, and the older is refused.
enum class Generation : int64_t {};

constexpr int32_t ToInt(Rank rank) { return static_cast<int32_t>(rank); }
constexpr int64_t ToInt(Generation generation) {
  return static_cast<int64_t>(generation);
}

}  // namespace millrace

#endif  // MILLRACE_BASE_IDS_H_
