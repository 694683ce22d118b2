// How workers hand each other parts of the training state from memory to
// memory: a server in each worker gives what its ReplicaStore holds and takes
// what others want kept, and clients fetch and push. Both ends prove that they
// know the job's secret (timed_socket.h); the bytes then are plain, as tensors
// between workers are.

#ifndef MILLRACE_WORKER_AGENT_REPLICA_EXCHANGE_H_
#define MILLRACE_WORKER_AGENT_REPLICA_EXCHANGE_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "fault/load_target.h"
#include "fault/replicas.h"
#include "fault/training_state.h"
#include "worker/agent/listener.h"
#include "worker/agent/replica_store.h"
#include "worker/agent/timed_socket.h"

namespace millrace {

class ReplicaServer {
 public:
  // Listens at `host_address`, at a port of the kernel's choice. `store` is
  // borrowed.
  static absl::StatusOr<std::unique_ptr<ReplicaServer>> Create(
      const std::string& host_address, const std::string& secret,
      ReplicaStore* store);
  ~ReplicaServer();

  const std::string& address() const { return listener_.address(); }
  // Parts of older generations are no longer taken: whoever sends them was
  // left out.
  void RefuseOlderThan(Generation generation) {
    least_generation_ = ToInt(generation);
  }

 private:
  ReplicaServer(Listener listener, std::string secret, ReplicaStore* store);
  void Accept();
  void Serve(TimedSocket* socket);

  Listener listener_;
  const std::string secret_;
  ReplicaStore* const store_;
  std::atomic<int64_t> least_generation_ = 0;
  std::atomic<bool> stopping_ = false;
  std::atomic<int> num_serving_ = 0;
  std::mutex mutex_;
  std::set<TimedSocket*> sockets_;  // One for each connection served.
  std::thread thread_;
};

// A worker's requests to other workers. All of its calls fail soon after
// Abort().
class ReplicaClient {
 public:
  explicit ReplicaClient(std::string secret);
  ~ReplicaClient();

  // Has the worker at `address` keep a part that `store` holds. Keeps a
  // connection to each address; one thread at a time.
  absl::Status Push(const ReplicaStore& store, const StoredReplica& replica,
                    const std::string& address);

  // Fills every piece from the parts of `set`, whichever layout they were cut
  // for. `addresses` has the holder of each rank's part, by rank; what
  // `own_address` has is read from `store`. Every byte is verified. DataLoss if
  // one differs, NotFound if a holder lacks its part, Unavailable if it is
  // gone; the pieces then hold a mixture. With `target` the pieces lie in its
  // memory, and are filled when this returns. No thread writes into the pieces
  // after that.
  absl::Status Fill(const ReplicaSet& set,
                    const std::vector<std::string>& addresses,
                    const std::string& own_address, const ReplicaStore& store,
                    const std::vector<StatePiece>& pieces,
                    LoadTarget* target = nullptr);

  void Abort();

 private:
  friend class RemotePart;
  // A connection that has greeted, known to Abort() while it lives.
  class Channel;
  absl::StatusOr<std::unique_ptr<Channel>> Open(const std::string& address);

  const std::string secret_;
  std::mutex mutex_;
  std::atomic<bool> aborted_ = false;  // Changed with the lock held.
  std::set<TimedSocket*> sockets_;
  std::map<std::string, std::unique_ptr<Channel>> push_channels_;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_AGENT_REPLICA_EXCHANGE_H_
