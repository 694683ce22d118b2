// The Executor runs Programs: each lane a thread that runs its instructions in
// order and waits where an instruction waits for other lanes.
//
// There may be more lanes than cores, several times over, so no lane spins: one
// sleeps until the last instruction it waits for is done, and is woken once.

#ifndef MILLRACE_WORKER_CPU_EXECUTOR_H_
#define MILLRACE_WORKER_CPU_EXECUTOR_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "planner/program/program.h"
#include "planner/simulate/timeline.h"
#include "worker/train/progress_board.h"

namespace millrace {

// One instruction made ready: operands resolved, kernels planned.
using BoundOp = std::function<absl::Status()>;

// A Program and what its instructions do. Built once, run many times.
class PreparedProgram {
 public:
  // `ops` by InstructionId. `program` is borrowed.
  PreparedProgram(const Program* program, std::vector<BoundOp> ops);

  const Program& program() const { return *program_; }

  // Writes the timeline of the last run, by start; seconds from its start.
  // Reuses the capacity of `timeline`.
  void FillTimeline(RankTimeline* timeline) const;

  // Whether the last run completed the instruction. Not during a run.
  bool IsDone(InstructionId id) const { return done_[id] != 0; }
  // Does what the instruction does, outside of a run.
  absl::Status DoNow(InstructionId id) { return ops_[id](); }

 private:
  friend class Executor;

  const Program* program_;
  std::vector<BoundOp> ops_;
  // Both are indexed by InstructionId: the instructions of other lanes that
  // wait for this one, and the number of instructions that this one still waits
  // for in this run.
  std::vector<std::vector<InstructionId>> dependents_;
  std::vector<std::atomic<uint32_t>> pending_;
  std::vector<TimelineEvent> events_;
  std::vector<uint8_t> done_;  // Each is written by its instruction's lane.
};

// Looks at a run, instruction by instruction. Called on the lane's thread;
// lanes run at the same time.
class RunObserver {
 public:
  virtual ~RunObserver() = default;
  virtual void Before(InstructionId id) = 0;
  // Nothing that waits for the instruction has begun yet.
  virtual void After(InstructionId id) = 0;
};

class Executor {
 public:
  struct Options {
    std::string name;                   // The rank's name in errors: "rank 2".
    ProgressBoard* progress = nullptr;  // Borrowed; may be null.
    // Called once, by the lane that failed first, so that the other lanes'
    // communication fails too.
    std::function<void()> on_failure;
  };
  explicit Executor(Options options);
  // Stops the lanes; Run() must not be under way.
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Runs all lanes and waits for them. Allocates nothing. `step` is for errors.
  // The first error of any lane stops all of them and is returned with the
  // names of rank, step and instruction; every later run returns it too. One
  // run at a time. Lanes start their threads in the first run that uses them.
  // `observer` may be null.
  absl::Status Run(PreparedProgram& prepared, int64_t step,
                   RunObserver* observer = nullptr);

  // When the last run began, in MonotonicSeconds().
  double began_s() const { return start_s_; }

  // Makes a run under way, and all later ones, fail with Aborted. Does not stop
  // an instruction under way: on_failure's business. Thread-safe.
  void Abort();

 private:
  struct LaneState {
    std::thread thread;
    std::atomic<uint32_t> num_starts{0};
  };

  void LaneLoop(Lane lane);
  void RunLane(Lane lane);
  void Complete(InstructionId id);
  // True once nothing is pending, false if the run has failed.
  bool WaitUntilReady(InstructionId id);
  void Fail(absl::Status status);
  void Poison(PreparedProgram& prepared);

  const Options options_;
  std::array<LaneState, kNumLanes> lanes_;
  PreparedProgram* current_ = nullptr;
  RunObserver* observer_ = nullptr;
  double start_s_ = 0;
  int64_t step_ = 0;
  std::atomic<uint32_t> num_running_{0};  // Lanes.
  std::atomic<bool> failed_{false};
  bool closing_ = false;

  std::mutex mutex_;  // Guards failure_, and current_ against Abort().
  absl::Status failure_;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_CPU_EXECUTOR_H_
