// The Trainer that CreateCudaTrainer() makes. Its methods are in trainer.cc,
// those about steps that are run again in repeat_step.cc, and those about
// hashes in state_hashes.cc.

#ifndef MILLRACE_WORKER_CUDA_TRAIN_CUDA_TRAINER_H_
#define MILLRACE_WORKER_CUDA_TRAIN_CUDA_TRAINER_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "planner/layout/layout.h"
#include "planner/search/snapshot_plan.h"
#include "worker/cuda/device/device_arenas.h"
#include "worker/cuda/ops/kernel_cache.h"
#include "worker/cuda/train/executor.h"
#include "worker/cuda/train/rank_communication.h"
#include "worker/cuda/train/replica_hash.h"
#include "worker/cuda/train/run_record.h"
#include "worker/cuda/train/snapshot.h"
#include "worker/cuda/train/state.h"
#include "worker/cuda/train/step_check.h"
#include "worker/cuda/train/step_inputs.h"
#include "worker/cuda/train/step_programs.h"
#include "worker/cuda/train/trainer.h"
#include "worker/train/gathered_parameters.h"
#include "worker/train/progress_board.h"
#include "worker/train/state_snapshot.h"
#include "worker/train/step_pace.h"
#include "worker/train/trainer.h"

namespace millrace {

// Members are destroyed last to first.
class CudaTrainer : public Trainer {
 public:
  CudaTrainer(const TrainerOptions& options, int32_t device_idx,
              RendezvousStore* store, const CudaTrainerSettings& settings)
      : job_(options.job),
        layout_(options.layout),
        name_(absl::StrCat("rank ", ToInt(options.rank))),
        rank_(options.rank),
        coordinates_(CoordinatesOf(options.layout, options.rank)),
        device_idx_(device_idx),
        store_(store),
        settings_(settings),
        progress_(options.progress),
        expects_snapshots_(TakesSnapshots(options.job) ||
                           options.takes_replicas) {}
  ~CudaTrainer() override;

  absl::Status Build(const TrainerOptions& options);

  const Program& program() const override { return programs_->training; }
  absl::StatusOr<std::vector<StatePiece>> ReadState() override;
  absl::StatusOr<std::shared_ptr<const StateSnapshot>> TakeSnapshot() override;
  absl::StatusOr<bool> BeginReplicaHash() override;
  absl::StatusOr<uint64_t> FinishReplicaHash() override;
  absl::StatusOr<bool> HashOwnSlice() override;
  absl::Status HashGathered() override;
  absl::StatusOr<std::vector<uint64_t>> SliceHashes() override;
  absl::StatusOr<std::vector<StatePiece>> StateInPlace() override;
  absl::Status TakeChanges() override;
  absl::StatusOr<std::vector<StatePiece>> StateToFill() override;
  absl::StatusOr<LoadableState> StateToLoad() override;
  absl::Status FinishFilling(int64_t completed_steps) override;
  int64_t completed_steps() const override { return completed_steps_; }
  absl::StatusOr<std::optional<StepResult>> RunStep(
      const StepRequest& request) override;
  absl::StatusOr<std::optional<StepResult>> LastResult() override;
  absl::StatusOr<CheckedStep> RepeatStep(const StepRequest& request) override;
  absl::Status LeaveOutStep() override;
  absl::StatusOr<double> RunValidation(int64_t num_batches) override;
  absl::StatusOr<AnswerPass> RunAnswerPass(int64_t batch, bool vote) override;
  std::vector<StartPart> start_parts() const override { return start_parts_; }
  int64_t planned_bytes() const override {
    return programs_->persistent_bytes() + programs_->step_bytes();
  }
  int64_t allocated_bytes() const override { return arenas_->bytes(); }
  int64_t device_bytes() const override { return device_bytes_; }
  void Abort() override;

 private:
  // Programs made ready, by CudaOpContext::num_documents.
  using Variants = std::map<int64_t, std::unique_ptr<CudaPreparedProgram>>;

  // The memory of the state; then all that needs no contents of it.
  absl::Status BuildMemory();
  absl::Status Connect(const TrainerOptions& options);
  absl::Status BuildCommunication(const TrainerOptions& options);
  absl::Status Initialize();
  absl::StatusOr<LoadableState> Destination();
  void NoteStart(const char* part);
  absl::Status Publish();
  absl::StatusOr<CudaPreparedProgram*> Prepare(const Program& program,
                                               int64_t num_documents,
                                               Variants& variants);
  double* Scalars(const Program& program) const {
    return reinterpret_cast<double*>(
        arenas_->At(program.buffers[program.scalars_buffer]));
  }

  // Makes the device current and refuses what comes after a failure.
  absl::Status Begin();
  // With a check the step goes to the streams and is not measured.
  absl::Status EnqueueStep(const StepRequest& request, RunRecord& record,
                           CudaStepCheck* check = nullptr);
  // Behind a run.
  absl::Status EnqueueEnd(const CudaPreparedProgram& prepared,
                          RunRecord& record) {
    return record.EnqueueEnd(Scalars(prepared.program()), executor_->stream());
  }
  // Returns the pass's scalars, summed over the world.
  absl::StatusOr<const double*> RunValidationPass(int64_t batch, bool vote);
  // Takes the result of the newest step, which must not have been taken.
  absl::StatusOr<StepResult> TakeResult();
  // Where there are peers, waits until the untaken step, if it still runs, is
  // about to end (StepPace).
  absl::Status AwaitNearEnd();
  bool HasEnded(int64_t step);
  // After a step whose result was not finite: waits for the next one, which is
  // under way and changes nothing, and forgets it. Steps change weights again.
  absl::Status TakeBackStep();
  absl::Status ReleaseUpdates();
  // Until the run is done, the peers are gone, Abort() or the time-out.
  absl::Status WaitFor(const RunRecord& record) const;
  absl::Status WaitForStep();  // The untaken one.
  absl::Status WaitForAll();
  absl::Status StopReading();
  // Notes the first failure, with its place, and lets the peers' work end.
  absl::Status Fail(const absl::Status& status, absl::string_view place);
  absl::Status AddSliceHashes(const std::vector<GatheredPart>& parts);
  void NoteDeviceMemory();
  RunRecord& RecordOf(int64_t step) {
    return records_[static_cast<size_t>(step) % records_.size()];
  }

  const JobSpec job_;
  const Layout layout_;
  const std::string name_;
  const Rank rank_;
  const MeshCoordinates coordinates_;
  const int32_t device_idx_;
  RendezvousStore* const store_;
  const CudaTrainerSettings settings_;
  ProgressBoard* const progress_;  // May be null.
  const bool expects_snapshots_;

  std::atomic<bool> aborted_ = false;
  absl::Status failure_;
  int64_t completed_steps_ = 0;
  int64_t untaken_step_ = 0;  // Given to the device, result not taken; 0: none.
  bool paused_ = true;        // The device was let run dry since the last step.
  double step_time_s_ = 0;    // The newest step whose result was taken.
  StepPace pace_;
  int64_t device_bytes_ = 0;
  int64_t steps_run_ = 0;
  bool fills_device_ = false;  // Destination() was asked for, and gave that.
  std::vector<StartPart> start_parts_;
  double noted_s_ = MonotonicSeconds();

  std::unique_ptr<StepPrograms> programs_;
  std::unique_ptr<DeviceArenas> arenas_;
  std::unique_ptr<CudaState> state_;
  std::unique_ptr<CudaKernelCache> kernels_;
  std::unique_ptr<RankCommunication> communication_;  // Null: one rank.
  std::unique_ptr<StepInputFeed> feed_;
  std::unique_ptr<SnapshotTaker> snapshots_;
  std::shared_ptr<StateSnapshot> widened_;  // See TakeSnapshot().
  std::unique_ptr<CudaExecutor> executor_;
  std::optional<CudaStepCheck> check_;
  Variants training_;
  Variants validation_;
  Variants publish_;
  // The newest three steps: the one that runs, the one before, whose result is
  // read, and the one before that, at whose end the step time starts.
  std::vector<RunRecord> records_;
  std::optional<RunRecord> other_run_;       // Validation and publishing.
  std::optional<ReplicaHash> replica_hash_;  // From the first one on.
  std::optional<RunRecord> hash_run_;
  GatheredParts gathered_;
  std::optional<SliceHasher> slice_hashes_;  // From the first one on.
  std::optional<RunRecord> slices_run_;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_CUDA_TRAIN_CUDA_TRAINER_H_
