// The CudaExecutor runs Programs on a GPU: each lane a stream that runs its
// instructions in order, with an event wherever an instruction of one lane
// waits for another lane's.
//
// A Program's first run goes to the streams one instruction after the other,
// which loads what its kernels need and names the instruction that cannot
// start. The second captures the same calls into a CUDA graph, and from then on
// a run is one launch. A run that is measured goes to the streams again, with
// the timer's events in between, or is a graph of its own that holds them.

#ifndef MILLRACE_WORKER_CUDA_TRAIN_EXECUTOR_H_
#define MILLRACE_WORKER_CUDA_TRAIN_EXECUTOR_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/cuda/device_buffer.h"
#include "planner/program/program.h"
#include "planner/simulate/timeline.h"
#include "worker/cuda/device/handles.h"
#include "worker/cuda/device/op.h"
#include "worker/cuda/device/run_observer.h"
#include "worker/cuda/device/step_timer.h"

namespace millrace {

// A Program and what its instructions do. Built once, run many times. Must not
// be destroyed while a run of it is under way.
class CudaPreparedProgram {
 public:
  // `ops` by InstructionId. `program` is borrowed.
  static absl::StatusOr<std::unique_ptr<CudaPreparedProgram>> Create(
      const Program* program, std::vector<CudaOp> ops);
  ~CudaPreparedProgram();
  CudaPreparedProgram(const CudaPreparedProgram&) = delete;
  CudaPreparedProgram& operator=(const CudaPreparedProgram&) = delete;

  const Program& program() const { return *program_; }
  bool has_graph() const { return graph_ != nullptr; }

  // Returns the timeline of the newest measured run, which must be done.
  absl::StatusOr<RankTimeline> ReadTimeline() const;

 private:
  friend class CudaExecutor;

  CudaPreparedProgram(const Program* program, std::vector<CudaOp> ops);

  const Program* program_;
  std::vector<CudaOp> ops_;
  // Indexed by InstructionId. An event is recorded when the instruction is
  // done, if another lane waits for it.
  std::vector<std::optional<CudaEvent>> done_;
  std::vector<int32_t> place_;  // By InstructionId: its place on its lane.
  std::optional<StepTimer> timer_;
  cudaGraphExec_t graph_ = nullptr;
  cudaGraphExec_t measured_graph_ = nullptr;  // The same with timer_'s events.
  bool has_run_ = false;
  bool graph_failed_ = false;
};

class CudaExecutor {
 public:
  struct Options {
    std::string name;  // The rank's name in messages: "rank 2".
    // False: every run goes to the streams, for debugging.
    bool use_graphs = true;
    // Runs note on the device how far they are, for ReadProgress(). Costs a
    // microsecond wherever lanes wait for each other.
    bool note_progress = false;
    // Measured runs are graphs too. On streams the host launches each kernel:
    // where kernels are shorter than that takes, what is measured is the host.
    bool measure_in_graphs = false;
    // The event until which a part of the training state may be read, by the
    // op that changes it: the op waits for the newest Record() before the run.
    // Null for any other op. Events are borrowed; the function may be empty.
    std::function<const CudaEvent*(const Instruction&)> state_is_read = {};
  };
  // Creates an executor on the current device.
  static absl::StatusOr<std::unique_ptr<CudaExecutor>> Create(Options options);

  // Does what the next Run() would have to do on the host before the device has
  // work: captures the graph where one is due.
  absl::Status MakeReady(CudaPreparedProgram& prepared);
  // Enqueues a run and returns without waiting for the device. It starts after
  // what stream() was given before, and what stream() is given afterwards
  // starts after it. Errors name the instruction; a graph that cannot be
  // captured is no error, the Program then keeps to the streams, and standard
  // error says why, once.
  absl::Status Run(CudaPreparedProgram& prepared);
  // The same, for ReadTimeline(); the one measured before must be done.
  absl::Status RunMeasured(CudaPreparedProgram& prepared);
  // The same, to the streams, with an observer of all instructions.
  absl::Status RunObserved(CudaPreparedProgram& prepared,
                           CudaRunObserver& observer);

  // Returns the compute lane's stream.
  cudaStream_t stream() const;

  // Instructions of each lane that the run under way has ended, as far as has
  // been noted: exact for what other lanes wait for and on all lanes but
  // compute. Works while kernels hang; DeadlineExceeded if not even that.
  using Progress = std::array<int32_t, kNumLanes>;
  absl::StatusOr<Progress> ReadProgress(absl::Duration timeout);

  // Waits until the device has done all that was enqueued, or has failed.
  absl::Status Synchronize();

 private:
  explicit CudaExecutor(Options options) : options_(std::move(options)) {}

  absl::Status AddLanes(const Program& program);
  absl::Status AddProgress();
  // Observers may be null.
  absl::Status RunOnStreams(CudaPreparedProgram& prepared,
                            CudaRunObserver* observer);
  absl::Status RunInstruction(CudaPreparedProgram& prepared, InstructionId id,
                              CudaRunObserver* observer);
  absl::Status Capture(CudaPreparedProgram& prepared, CudaRunObserver* observer,
                       cudaGraphExec_t* graph);
  cudaStream_t LaneStream(Lane lane) const;

  struct LaneState {
    CudaStream stream;
    CudaEvent end;  // At the end of the lane's share of a run.
  };

  const Options options_;
  std::array<std::optional<LaneState>, kNumLanes> lanes_;
  // By lane, the event of state_is_read for which the lane has waited last in
  // the run being given to the streams.
  std::array<const CudaEvent*, kNumLanes> guarded_ = {};
  // Start of a run, which the other lanes wait for.
  std::optional<CudaEvent> start_;

  // The place of progress notes, and the way to read them past streams that
  // hang.
  struct ProgressNotes {
    DeviceBuffer<int32_t> device;  // [kNumLanes]
    PinnedMemory host;             // The same.
    CudaStream stream;
    CudaEvent read;
  };
  std::optional<ProgressNotes> progress_;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_CUDA_TRAIN_EXECUTOR_H_
