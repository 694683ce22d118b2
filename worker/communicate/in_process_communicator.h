// Communicators between ranks that are threads of one process: whole jobs in
// one test, without a network.

#ifndef MILLRACE_WORKER_COMMUNICATE_IN_PROCESS_COMMUNICATOR_H_
#define MILLRACE_WORKER_COMMUNICATE_IN_PROCESS_COMMUNICATOR_H_

#include <memory>

#include "absl/time/time.h"
#include "worker/communicate/communicator.h"

namespace millrace {

// The meeting place of the ranks of one process. Thread-safe. It must outlive
// the factories and communicators made from it.
class InProcessHub {
 public:
  // Create() of a communicator waits at most `create_timeout` for its members.
  explicit InProcessHub(absl::Duration create_timeout = absl::Seconds(30));
  ~InProcessHub();

  // The factory of one rank: its Abort() concerns that rank's communicators,
  // and their peers see the rank as gone.
  std::unique_ptr<CommunicatorFactory> NewFactory();

  class State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_COMMUNICATE_IN_PROCESS_COMMUNICATOR_H_
