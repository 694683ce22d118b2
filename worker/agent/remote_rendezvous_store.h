// The rendezvous store of one generation, held by the coordinator.

#ifndef MILLRACE_WORKER_AGENT_REMOTE_RENDEZVOUS_STORE_H_
#define MILLRACE_WORKER_AGENT_REMOTE_RENDEZVOUS_STORE_H_

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/ids.h"
#include "coordinator/protocol/client.h"
#include "worker/communicate/rendezvous_store.h"

namespace millrace {

class RemoteRendezvousStore : public RendezvousStore {
 public:
  // `client` is borrowed; whoever receives its messages hands values on to
  // OnValue().
  RemoteRendezvousStore(Client* client, Generation generation)
      : client_(client), generation_(generation) {}

  absl::Status Set(const std::string& key, const std::string& value) override;
  absl::StatusOr<std::string> Get(const std::string& key,
                                  absl::Duration timeout) override;

  void OnValue(const std::string& key, const std::string& value);
  // Ends waiting calls, and later ones, with Aborted.
  void Abort();

 private:
  Client* const client_;
  const Generation generation_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
  std::map<std::string, absl::Time> asked_at_;
  bool aborted_ = false;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_AGENT_REMOTE_RENDEZVOUS_STORE_H_
