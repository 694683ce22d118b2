// A Communicator joins the ranks of one group for one generation. One
// interface, several implementations: Gloo across processes, in-process for
// tests.
//
// Calls block the calling thread (each lane of a rank is a thread of its own)
// and must come in the same order on every member. One Communicator is used by
// one thread at a time, except that one thread may Send while another Receives
// (the two lanes of a middle stage); Abort() may come from any thread.

#ifndef MILLRACE_WORKER_COMMUNICATE_COMMUNICATOR_H_
#define MILLRACE_WORKER_COMMUNICATE_COMMUNICATOR_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/ids.h"
#include "planner/layout/layout.h"
#include "planner/program/ops.h"

namespace millrace {

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int32_t size() const = 0;
  virtual int32_t index() const = 0;  // This rank's index in the group.

  // Sums are taken in an order that depends on the group's size and the number
  // of elements only, so equal runs give equal bits. dtype kFloat32, kFloat64
  // or kBfloat16, whose sums are taken in fp32 and rounded once.
  //
  // All return Unavailable, naming the group, when a peer is gone, and Aborted
  // after Abort().

  // full[i * n / size ...) = member i's shard. `shard` may be the caller's
  // slice of `full`.
  virtual absl::Status AllGather(const void* shard, void* full,
                                 int64_t num_elements, DType dtype) = 0;
  // shard = sum over members of full[index * n / size ...). `shard` may be the
  // caller's slice of `full`; the rest of `full` is then undefined.
  virtual absl::Status ReduceScatter(void* full, void* shard,
                                     int64_t num_elements, DType dtype) = 0;
  virtual absl::Status AllReduce(void* data, int64_t num_elements,
                                 DType dtype) = 0;
  // Point to point; Send returns when `data` may be reused.
  virtual absl::Status Send(const void* data, int64_t num_bytes,
                            int32_t to_index) = 0;
  virtual absl::Status Receive(void* data, int64_t num_bytes,
                               int32_t from_index) = 0;

  // Makes every pending and later call of this rank fail soon. Thread-safe.
  virtual void Abort() = 0;
};

// Identifies a communicator. Each (group, channel) has its own connections. The
// lanes that share a group use a channel each, so that their calls never mix.
// The channel is 0, except that kPipeline has channel 0 for kToNext transfers
// and 1 for kToPrevious.
struct CommunicatorKey {
  Group group;
  int32_t channel = 0;
};

// Makes the communicators of one rank for one generation.
class CommunicatorFactory {
 public:
  virtual ~CommunicatorFactory() = default;
  // Collective over the group's members; waits for them. `members` in group
  // order, as GroupMembers() gives it. DeadlineExceeded names who is missing.
  virtual absl::StatusOr<std::unique_ptr<Communicator>> Create(
      CommunicatorKey key, const std::vector<Rank>& members, Rank self) = 0;
  // Aborts creations under way and every communicator it made. Thread-safe.
  virtual void Abort() = 0;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_COMMUNICATE_COMMUNICATOR_H_
