// A RendezvousStore for ranks that are threads of one process.

#ifndef MILLRACE_WORKER_COMMUNICATE_MEMORY_RENDEZVOUS_STORE_H_
#define MILLRACE_WORKER_COMMUNICATE_MEMORY_RENDEZVOUS_STORE_H_

#include <condition_variable>
#include <map>
#include <mutex>
#include <string>

#include "worker/communicate/rendezvous_store.h"

namespace millrace {

class MemoryRendezvousStore : public RendezvousStore {
 public:
  absl::Status Set(const std::string& key, const std::string& value) override;
  absl::StatusOr<std::string> Get(const std::string& key,
                                  absl::Duration timeout) override;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_COMMUNICATE_MEMORY_RENDEZVOUS_STORE_H_
