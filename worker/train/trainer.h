// A Trainer is one rank's training: Programs, memory, communicators, executor
// and state. It runs one step after the other and knows nothing of agents or
// the coordinator, so that a test can run a whole job of them in one process.
// worker/cpu/trainer.h makes one on CPU cores, worker/cuda/train/trainer.h one
// on a GPU.

#ifndef MILLRACE_WORKER_TRAIN_TRAINER_H_
#define MILLRACE_WORKER_TRAIN_TRAINER_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/ids.h"
#include "fault/training_state.h"
#include "planner/job/job.h"
#include "planner/layout/layout.h"
#include "planner/profile/profile.h"
#include "planner/program/program.h"
#include "planner/simulate/timeline.h"
#include "worker/communicate/communicator.h"
#include "worker/data/batch_source.h"
#include "worker/train/progress_board.h"
#include "worker/train/state_loader.h"
#include "worker/train/state_snapshot.h"

namespace millrace {

struct TrainerOptions {
  JobSpec job;
  Layout layout;
  Rank rank;
  int32_t num_threads = 1;  // In the compute lane of a CPU.
  // Borrowed while the Trainer is made; null for GPUs, which make their own.
  CommunicatorFactory* communicators = nullptr;
  // The kernel tuning of the profile that the plan was made with. GPU kernels
  // take their choices from it. A tuning of another device is ignored.
  KernelTuning tuning;
  BatchSource* batches = nullptr;  // Borrowed for the lifetime.
  // Set to true to make the creation of a trainer on a GPU end soon. Borrowed
  // until it is made; may be null. On a CPU call Abort() of the factory.
  const std::atomic<bool>* abort_requested = nullptr;
  ProgressBoard* progress = nullptr;  // Borrowed for the lifetime; may be null.
  // Copies of the state in memory will be taken, whatever the job's checkpoints
  // are.
  bool takes_replicas = false;
  // Memory of a GPU in which a part of each snapshot is staged, as the plan
  // says (planner/search/snapshot_plan.h).
  int64_t staged_bytes = 0;
  // Loads the state that training goes on from, as soon as there is memory for
  // it and beside all that follows; none: training begins at initial weights.
  // Its errors are those of making the trainer.
  std::optional<StateLoader> loader;
};

struct StepRequest {
  bool vote_to_stop = false;  // Asks all ranks to stop.
  // Asks for the step's timeline, which costs a GPU some of the step's time. A
  // CPU measures every step.
  bool measure = false;
  // For RepeatStep() alone: each data replica computes the samples of the one
  // so many further on, modulo their number. Allowed where CanExchangeSamples()
  // says so (fault/bad_steps.h). The global batch is the same, its sums have
  // another order.
  int32_t sample_shift = 0;
};

// Means over the pairs of a step. A reward is beta times what an answer's
// log-probability has gained over the reference.
struct PreferenceMetrics {
  double chosen_reward = 0;
  double rejected_reward = 0;
  double accuracy =
      0;  // Share of pairs whose chosen answer has the larger one.
  double margin() const { return chosen_reward - rejected_reward; }
};

struct StepResult {
  int64_t step;  // The first is 1.
  double loss;   // Mean over the global batch's trained tokens, nats each.
  double gradient_norm;  // Before clipping.
  double learning_rate;
  double step_time_s;
  bool stop;  // Some rank voted to stop in this step; all are told in the same.
  bool finite;  // False: loss or gradient is not a number.
  std::optional<PreferenceMetrics> preference;  // Where pairs are trained.
  std::optional<RankTimeline> timeline;         // Where it was measured.
};

// The outcome of running a step once more with every op's results checked.
struct CheckedStep {
  StepResult result;
  // The op of this rank that made the first value that is not a number from
  // operands that were numbers: "gemm 'layers.3/mlp/down' of micro-batch 1
  // (forward)". Empty if there is none on this rank.
  std::string origin;
  // With 8-bit products, the largest magnitude of any tensor that was copied,
  // and the copy that it was in: "'layers.3/mlp/quantize_input' of micro-batch
  // 1 (forward)". Infinity counts, what is not a number does not.
  float largest_amax = 0;
  std::string largest_in;
};

// A validation pass's results for the answers that it read.
struct AnswerPass {
  // [data, tokens of a micro-batch]: where an answer begins its
  // log-probability, zero elsewhere. Empty on ranks of other stages than the
  // last.
  std::vector<float> log_probabilities;
  bool vote = false;  // Some rank voted.
};

// The time that a part of making a trainer or of loading its state took.
struct StartPart {
  std::string name;  // "communicators"
  double seconds = 0;
};

// Training state that outlived a failed step.
struct KeptState {
  int64_t completed_steps = 0;
  // What each rank would write into a checkpoint, as far as it is here: this
  // rank's part, and those of ranks that hold the same state. In host memory.
  std::map<Rank, std::vector<StatePiece>> parts;
  // The result of the newest step, if RunStep() failed in it and its update was
  // completed all the same. It has no timeline.
  std::optional<StepResult> completed_step;
};

// A CPU has done a step when RunStep() returns. A GPU has only been given it,
// and returns the result of the step before, so that the host never waits for a
// device that could work: every result lags by one step, the stop in it too.
class Trainer {
 public:
  virtual ~Trainer() = default;

  virtual const Program& program() const = 0;  // The training Program.

  // The training state after completed_steps() steps, as checkpoints see it, in
  // host memory that holds it until the next step. Waits for all that was
  // started. On a CPU the pieces are the state itself, but for copies of
  // moments that are not stored in fp32.
  virtual absl::StatusOr<std::vector<StatePiece>> ReadState() = 0;
  // The state after completed_steps() steps, of which training goes on at once:
  // the copy may be under way when this returns, and a step changes nothing
  // before it is done. Reuses the memory of the snapshot before unless somebody
  // holds that one. ResourceExhausted if the host has no memory for a copy. If
  // the newest step, whose result a GPU does not know yet, turns out bad and
  // counts after RepeatStep(), a snapshot taken in between lacks its update.
  virtual absl::StatusOr<std::shared_ptr<const StateSnapshot>>
  TakeSnapshot() = 0;
  // Begins to hash what this rank's replicas hold alike after completed_steps()
  // steps (fault/replica_check.h), on the device and in its order: it holds up
  // nothing but what the device does next. False where the state is in host
  // memory, which whoever asks hashes there.
  virtual absl::StatusOr<bool> BeginReplicaHash() { return false; }
  // The hash that was begun last, once the device has it: equal bits, equal
  // hash. Call it when the result of the step before it is known.
  virtual absl::StatusOr<uint64_t> FinishReplicaHash() {
    return absl::FailedPreconditionError("no hash was begun");
  }
  // Hashes by which a data group compares the parameters that its ranks gather
  // from each other in a step (worker/train/gathered_parameters.h). After
  // completed_steps() steps, HashOwnSlice() begins to hash what the others will
  // gather from this rank; false if nothing is gathered, or not compared. After
  // the next step, HashGathered() begins to hash what this rank gathered in it.
  // SliceHashes() returns both, by slice, once the device has them. Call it
  // when the result of that step is known.
  virtual absl::StatusOr<bool> HashOwnSlice() { return false; }
  virtual absl::Status HashGathered() {
    return absl::FailedPreconditionError("no slice was hashed");
  }
  virtual absl::StatusOr<std::vector<uint64_t>> SliceHashes() {
    return absl::FailedPreconditionError("no slice was hashed");
  }
  // The same state where it lies in the device's own memory, for programs that
  // read or change it in place between steps: fp32 throughout, so with bf16
  // activations the parameters are master weights. Moments that are not stored
  // in fp32 are left out. Waits for all that was started. The memory lives as
  // long as the trainer. After a change call TakeChanges() before the next
  // step; collective over the world.
  virtual absl::StatusOr<std::vector<StatePiece>> StateInPlace() = 0;
  virtual absl::Status TakeChanges() = 0;
  // To load a checkpoint: fill all pieces of StateToFill(), then call
  // FinishFilling() with the steps it had completed. Nothing else may be called
  // in between; before it the state is undefined, but for the moments of a CPU
  // that has run no step, which are zero. Collective over the world.
  virtual absl::StatusOr<std::vector<StatePiece>> StateToFill() = 0;
  // In the place of StateToFill(), for LoadCheckpoint() and
  // ReplicaClient::Fill(): on a GPU they load to the device at once.
  virtual absl::StatusOr<LoadableState> StateToLoad() {
    absl::StatusOr<std::vector<StatePiece>> pieces = StateToFill();
    if (!pieces.ok()) return pieces.status();
    return LoadableState{.pieces = *std::move(pieces), .target = nullptr};
  }
  virtual absl::Status FinishFilling(int64_t completed_steps) = 0;

  // Done or, on a GPU, given to it.
  virtual int64_t completed_steps() const = 0;

  // Runs the next step; collective over the world. Allocates nothing of its
  // own. Returns the result of the newest step that is known to be done: on a
  // GPU nothing after the first step that follows LastResult() or the start.
  // Unavailable when a peer is gone, Aborted after Abort(); on a GPU perhaps a
  // step late.
  //
  // A step whose result is not finite has changed nothing. A GPU that learns of
  // it takes back the step that it was given since, which has changed nothing
  // either: completed_steps() is again that of the result.
  virtual absl::StatusOr<std::optional<StepResult>> RunStep(
      const StepRequest& request) = 0;
  // Waits for all that was started; the result of the newest step, unless
  // RunStep() has returned it already.
  virtual absl::StatusOr<std::optional<StepResult>> LastResult() = 0;

  // Runs the newest step once more, after a result that was not finite, and
  // checks every op's results; collective over the world. The weights are those
  // before the step, since such a step changes nothing; if it is finite now, it
  // counts like any other. Waits for it, on a GPU too, where it is not
  // measured. Nothing may have been called since that result came, but for this
  // and for reading the state or changing it in place.
  virtual absl::StatusOr<CheckedStep> RepeatStep(
      const StepRequest& request) = 0;
  // Leaves out the next step: it counts as completed, and its batch is not
  // trained. Call LastResult() before.
  virtual absl::Status LeaveOutStep() = 0;

  // Mean validation loss over the trained tokens of `num_batches` forward
  // passes; collective. InvalidArgument if none of them is trained. The
  // result of a step under way is not lost: LastResult() still has it.
  virtual absl::StatusOr<double> RunValidation(int64_t num_batches) = 0;

  // Runs validation pass `batch` (the first is 1) of a layout that trains
  // preferences, and shares the ranks' votes; collective. A step under way is
  // treated as by RunValidation().
  virtual absl::StatusOr<AnswerPass> RunAnswerPass(int64_t batch,
                                                   bool vote) = 0;

  // After RunStep() has failed or training has ended: the state after the
  // newest step that is whole. An update of the optimizer that had begun is
  // completed. Nothing where memory may hold half a step, as on a GPU whose
  // collectives were aborted.
  virtual std::optional<KeptState> KeepState() { return std::nullopt; }

  // The parts of what was done to make the trainer that take long, in order.
  virtual std::vector<StartPart> start_parts() const { return {}; }

  // Bytes of both arenas as planned and as allocated; equal, asserted.
  virtual int64_t planned_bytes() const = 0;
  virtual int64_t allocated_bytes() const = 0;
  // The most of the device that this process has used so far: on a GPU with
  // context, libraries and communicators; on a CPU the arenas.
  virtual int64_t device_bytes() const = 0;

  // Makes a step under way, and all later ones, fail soon. Thread-safe.
  virtual void Abort() = 0;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_TRAIN_TRAINER_H_
