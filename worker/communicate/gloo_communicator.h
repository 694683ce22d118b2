// Communicators across processes, over Gloo's TCP transport: one full mesh of
// connections for each (group, channel).
//
// The collectives are written here on Gloo's point-to-point messages: every
// member exchanges slices with every other directly and sums in member order.
// This exchange is deterministic, has one round instead of a ring's size - 1,
// and can be aborted from another thread, which Gloo's own collectives cannot.

#ifndef MILLRACE_WORKER_COMMUNICATE_GLOO_COMMUNICATOR_H_
#define MILLRACE_WORKER_COMMUNICATE_GLOO_COMMUNICATOR_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/communicate/communicator.h"
#include "worker/communicate/rendezvous_store.h"

namespace millrace {

struct GlooOptions {
  RendezvousStore* store;    // The generation's store; borrowed.
  std::string host_address;  // This machine's, as the peers reach it.
  absl::Duration connect_timeout = absl::Seconds(30);
  std::vector<std::string> hosts = {};  // By rank, for messages; may be empty.
};

// A communicator keeps a small record for each distinct (address, bytes) it was
// called with: callers reuse their buffers.
//
// Returns InvalidArgument if no interface has `host_address`. The process
// ignores SIGPIPE from then on.
absl::StatusOr<std::unique_ptr<CommunicatorFactory>> CreateGlooFactory(
    const GlooOptions& options);

}  // namespace millrace

#endif  // MILLRACE_WORKER_COMMUNICATE_GLOO_COMMUNICATOR_H_
