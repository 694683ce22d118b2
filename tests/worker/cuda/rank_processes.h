// Ranks as processes of this machine, one a GPU, for tests and benchmarks of
// what runs between GPUs. They are forked, so the process that starts them must
// never have touched CUDA.

#ifndef MILLRACE_TESTS_WORKER_CUDA_RANK_PROCESSES_H_
#define MILLRACE_TESTS_WORKER_CUDA_RANK_PROCESSES_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/ids.h"
#include "worker/communicate/rendezvous_store.h"

namespace millrace {

// GPUs that CUDA sees, asked in a process of its own; zero without a driver.
int32_t CountDevices();

class RankProcesses {
 public:
  // The part of the machine that its ranks see: all GPUs, or their own alone,
  // as device 0, so that they cannot map each other's memory.
  enum class Sight { kAllDevices, kOwnDevice };

  // Makes a folder of its own.
  explicit RankProcesses(Sight sight = Sight::kAllDevices);
  ~RankProcesses();  // Kills what is left and removes the folder.
  RankProcesses(const RankProcesses&) = delete;

  const std::string& folder() const { return folder_; }

  // The rank's device, as its process counts them.
  int32_t DeviceOf(Rank rank) const {
    return sight_ == Sight::kOwnDevice ? 0 : ToInt(rank);
  }

  // `body` runs in a new process, with the rank's device current before
  // anything else; its status is what Wait() returns.
  using Body = std::function<absl::Status(Rank)>;
  void Start(Rank rank, const Body& body);

  // kill -9, and waits until the process is gone.
  void Kill(Rank rank);

  // The body's status. Unavailable if the process was killed or crashed;
  // DeadlineExceeded, and a kill, after `timeout`.
  absl::Status Wait(Rank rank, absl::Duration timeout);

  // Starts ranks 0 to `num_ranks` - 1 and waits for all; the first error.
  absl::Status RunAll(int32_t num_ranks, absl::Duration timeout,
                      const Body& body);

 private:
  std::string ErrorPath(pid_t pid) const;

  const Sight sight_;
  std::string folder_;
  std::map<Rank, pid_t> pids_;
};

// Returns once all of `num_ranks` ranks have come to `name`, each time another
// one.
absl::Status Meet(RendezvousStore& store, const std::string& name, Rank rank,
                  int32_t num_ranks);

}  // namespace millrace

#endif  // MILLRACE_TESTS_WORKER_CUDA_RANK_PROCESSES_H_
