// A RendezvousStore for ranks that are processes of one machine, without a
// coordinator: a folder with a file a key.

#ifndef MILLRACE_WORKER_COMMUNICATE_DIRECTORY_RENDEZVOUS_STORE_H_
#define MILLRACE_WORKER_COMMUNICATE_DIRECTORY_RENDEZVOUS_STORE_H_

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/communicate/rendezvous_store.h"

namespace millrace {

class DirectoryRendezvousStore : public RendezvousStore {
 public:
  // `folder` is made when missing. One folder is one generation: what an
  // earlier one left there would be taken for this one's.
  explicit DirectoryRendezvousStore(std::string folder)
      : folder_(std::move(folder)) {}

  absl::Status Set(const std::string& key, const std::string& value) override;
  absl::StatusOr<std::string> Get(const std::string& key,
                                  absl::Duration timeout) override;

 private:
  std::string PathOf(const std::string& key) const;

  const std::string folder_;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_COMMUNICATE_DIRECTORY_RENDEZVOUS_STORE_H_
