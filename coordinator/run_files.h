// Finds what the run directory on another host lacks: plan, profile,
// metrics, events and the like, so that a coordinator there goes on with them.
// Logs and checkpoints have hosts of their own.

#ifndef MILLRACE_COORDINATOR_RUN_FILES_H_
#define MILLRACE_COORDINATOR_RUN_FILES_H_

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "coordinator/protocol/millrace.pb.h"

namespace millrace {

// Keeps account of the bytes that one host has been sent.
class RunFiles {
 public:
  // `appended`: the bytes of files that only grow and are there already.
  RunFiles(std::string run_directory, std::map<std::string, int64_t> appended);

  // The pieces that follow, a few megabytes at most. Files that cannot be read
  // are left for a later call.
  std::vector<protocol::RunFile> Next();

 private:
  struct Sent {
    int64_t bytes = 0;
    std::filesystem::file_time_type time;  // Of files that are replaced.
  };
  const std::string run_directory_;
  std::map<std::string, Sent> sent_;
};

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_RUN_FILES_H_
