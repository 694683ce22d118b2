// A Trainer is one rank's training: Programs, arenas, communicators, executor
// and state. It runs one step at a time and knows nothing of agents or the
// coordinator, so that a test can run a whole job of them in one process.

#ifndef MILLRACE_WORKER_TRAINER_H_
#define MILLRACE_WORKER_TRAINER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/ids.h"
#include "fault/training_state.h"
#include "planner/job.h"
#include "planner/layout.h"
#include "planner/program.h"
#include "planner/timeline.h"
#include "worker/communicator.h"
#include "worker/data/batch_source.h"

namespace millrace {

struct TrainerOptions {
  JobSpec job;
  Layout layout;
  Rank rank;
  int32_t num_threads = 1;             // Of the compute lane.
  CommunicatorFactory* communicators;  // Borrowed for Create().
  BatchSource* batches;                // Borrowed for the lifetime.
};

struct StepResult {
  int64_t step;          // The one just done; the first is 1.
  double loss;           // Mean of the global batch, nats per token.
  double gradient_norm;  // Before clipping.
  double learning_rate;
  double step_time_s;
  bool stop;              // Some rank voted to stop after this step.
  bool finite;            // False: loss or gradient is not a number.
  RankTimeline timeline;  // Measured.
};

class Trainer {
 public:
  // Builds Programs and arenas, creates communicators (collective over the
  // world) and initializes the parameters from the job's seed: a pure function
  // of (seed, parameter name, element), the same under every layout.
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(
      const TrainerOptions& options);
  ~Trainer();

  const Program& program() const;

  // The state as checkpoints see it: pieces point into the arena. Set
  // `completed_steps` after loading into the pieces.
  std::vector<StatePiece> StatePieces();
  int64_t completed_steps() const;
  void set_completed_steps(int64_t steps);

  // Runs the next step on all lanes; collective over the world. Allocates
  // nothing of its own. `vote_to_stop` asks all ranks to stop after this step.
  // Unavailable when a peer is gone, Aborted after Abort().
  absl::StatusOr<StepResult> RunStep(bool vote_to_stop);

  // Mean validation loss over `num_batches` forward passes; collective.
  absl::StatusOr<double> RunValidation(int64_t num_batches);

  // Bytes of both arenas as planned and as allocated; equal, asserted.
  int64_t planned_bytes() const;
  int64_t allocated_bytes() const;

  // Makes a step under way fail soon. Thread-safe.
  void Abort();

 private:
  class Impl;
  explicit Trainer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_TRAINER_H_
