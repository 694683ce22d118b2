// Identifiers that must not be mixed up, as types of their own.

#ifndef MILLRACE_BASE_IDS_H_
#define MILLRACE_BASE_IDS_H_

#include <cstdint>

namespace millrace {

// A worker's part in a generation: its position in the plan, in
// [0, Layout::num_ranks()).
enum class Rank : int32_t {};

// A worker of a job: a device, numbered over all agents in their order, for as
// long as the job runs. Its processes follow one another. A generation gives it
// a rank, or none.
enum class WorkerIdx : int32_t {};

// One membership of workers. Rises by one at every change; every message,
// communicator and checkpoint commit carries it, and the older is refused.
enum class Generation : int64_t {};

constexpr int32_t ToInt(Rank rank) { return static_cast<int32_t>(rank); }
constexpr int32_t ToInt(WorkerIdx worker) {
  return static_cast<int32_t>(worker);
}
constexpr int64_t ToInt(Generation generation) {
  return static_cast<int64_t>(generation);
}

}  // namespace millrace

#endif  // MILLRACE_BASE_IDS_H_
