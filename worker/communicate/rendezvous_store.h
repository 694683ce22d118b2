// A key-value store scoped to one generation, in which the members of a
// communicator find each other's addresses. Across processes the coordinator
// holds it (coordinator/protocol); tests use one in memory.

#ifndef MILLRACE_WORKER_COMMUNICATE_RENDEZVOUS_STORE_H_
#define MILLRACE_WORKER_COMMUNICATE_RENDEZVOUS_STORE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace millrace {

// Thread-safe.
class RendezvousStore {
 public:
  virtual ~RendezvousStore() = default;
  virtual absl::Status Set(const std::string& key,
                           const std::string& value) = 0;
  // Waits for the key. DeadlineExceeded after `timeout`; Aborted when the
  // generation has ended.
  virtual absl::StatusOr<std::string> Get(const std::string& key,
                                          absl::Duration timeout) = 0;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_COMMUNICATE_RENDEZVOUS_STORE_H_
