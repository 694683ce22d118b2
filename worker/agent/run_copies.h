// The copy of the run directory on a host that does not see it, and may have
// the coordinator later: it goes on with these files.

#ifndef MILLRACE_WORKER_AGENT_RUN_COPIES_H_
#define MILLRACE_WORKER_AGENT_RUN_COPIES_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "coordinator/protocol/millrace.pb.h"

namespace millrace {

class RunCopies {
 public:
  explicit RunCopies(std::string run_directory)
      : run_directory_(std::move(run_directory)) {}

  // Writes what the coordinator of that term sent. InvalidArgument for a name
  // that leads out of the run directory or a piece that does not follow; else
  // the disk's error.
  absl::Status Take(int64_t term, const protocol::RunFile& piece);

  // Tells a coordinator what is there.
  void AddTo(protocol::AgentHello* hello) const;

 private:
  const std::string run_directory_;
  int64_t term_ = 0;
  std::map<std::string, int64_t> bytes_;  // By name.
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_AGENT_RUN_COPIES_H_
