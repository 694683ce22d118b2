// Looks at a job from outside: by its run directory, or by the address of its
// coordinator, from any host that has the job's secret.

#ifndef MILLRACE_COORDINATOR_CLI_VISIT_H_
#define MILLRACE_COORDINATOR_CLI_VISIT_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/protocol/client.h"
#include "coordinator/protocol/millrace.pb.h"

namespace millrace {

// In the run directory: the addresses at which the coordinator listens.
inline constexpr char kAddressFile[] = "address";

// One of both is set.
struct JobPlace {
  std::string run_directory;
  std::string address;  // As a client takes it.
};
// NotFound if `text` is neither a folder nor HOST:PORT.
absl::StatusOr<JobPlace> FindJob(const std::string& text);

class Visit {
 public:
  // The connection is made by the first question. `secret_file` empty: the
  // environment's secret.
  static absl::StatusOr<Visit> Open(const std::string& address,
                                    const std::string& secret_file);

  // Cancelled if the job has ended, Unavailable if nobody answers.
  absl::StatusOr<protocol::FromCoordinator> Ask(
      const protocol::ToCoordinator& question);

 private:
  explicit Visit(std::unique_ptr<Client> client) : client_(std::move(client)) {}
  std::unique_ptr<Client> client_;
};

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_CLI_VISIT_H_
