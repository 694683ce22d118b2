// Runs one generation of a worker on its own thread: it builds the trainer,
// restores the state, trains and reports, or it measures a profile.

#ifndef MILLRACE_WORKER_AGENT_GENERATION_RUN_H_
#define MILLRACE_WORKER_AGENT_GENERATION_RUN_H_

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/ids.h"
#include "coordinator/protocol/client.h"
#include "coordinator/protocol/millrace.pb.h"
#include "fault/hang_watch.h"
#include "planner/job/job.h"
#include "planner/simulate/timeline.h"
#include "worker/agent/checkpoint_folder.h"
#include "worker/agent/checkpoint_writer.h"
#include "worker/agent/remote_rendezvous_store.h"
#include "worker/agent/replica_keeper.h"
#include "worker/agent/worker_process.h"
#include "worker/communicate/communicator.h"
#include "worker/data/evaluation_batches.h"
#include "worker/measure/processor_time.h"
#include "worker/train/progress_board.h"
#include "worker/train/trainer.h"

namespace millrace {

class GenerationRun {
 public:
  // Starts at once. `options`, `client`, `writer` and `replicas` are borrowed.
  GenerationRun(const WorkerOptions& options, Client* client,
                CheckpointWriter* writer, ReplicaKeeper* replicas,
                Generation generation,
                const protocol::StartGeneration& message);
  // Aborts, and waits for the thread.
  ~GenerationRun();

  Generation generation() const { return generation_; }
  // Restored, training or done; false while it still starts.
  bool running() const { return running_; }
  // After it has failed or paused: it puts the state that it still holds into
  // memory.
  bool keeps_state() const { return keeps_state_; }
  // An error has left this process's GPU unusable: only another process can go
  // on. Known once the run has ended.
  bool device_lost() const { return device_lost_; }
  RemoteRendezvousStore* store() { return &store_; }

  // Adds to a heartbeat how far this rank is, if it is to train. Thread-safe.
  void AddProgress(protocol::ToCoordinator* heartbeat) const;
  // All ranks end with the step under way. They write a checkpoint, or keep
  // their state in memory and wait for Abort() or RequestStop(). Thread-safe.
  void RequestStop() { stop_requested_ = true; }
  void RequestPause() { pause_requested_ = true; }
  // Thread-safe.
  void SetCheckpointInterval(const protocol::CheckpointInterval& interval);
  // Makes the thread end soon; returns at once.
  void Abort();
  // True if the thread has ended within `timeout`.
  bool WaitUntilEnded(absl::Duration timeout);

 private:
  // The owned pieces of the state whose hash was last sent to be compared.
  struct ComparedState {
    int64_t step = -1;
    std::vector<std::vector<uint64_t>> checksums;  // ChecksumsOf().
  };
  // The results of validation passes after a step.
  struct Validation {
    std::optional<double> loss;  // On the training data's held-out share.
    std::map<std::string, double> evaluation;  // Losses by set.
    double seconds = 0;
  };

  bool votes_to_stop() const { return stop_requested_ || pause_requested_; }
  void Run(absl::Status status);
  // Once; not after Abort(). Thread-safe.
  void ReportFailure(const absl::Status& status);
  absl::Status Train(const JobSpec& job);
  absl::Status Measure(const JobSpec& job);
  absl::Status MakeCommunicators();  // Those of CPU ranks.
  absl::Status BuildTrainer(const JobSpec& job);
  // Whether the state is loaded while the trainer is made. Not where pairs are
  // trained: passes over starting weights may come first.
  bool LoadsWhileMaking(const JobSpec& job) const;
  // Restores into a trainer that was made without a state. Unless it has them
  // already, starting weights are loaded where nothing is to be restored.
  absl::Status Restore(const JobSpec& job, bool has_starting_weights);
  // Fills the state from memory or from the checkpoint that was named, on any
  // thread. Returns the steps that it has completed.
  absl::StatusOr<int64_t> LoadState(const LoadableState& state);
  absl::StatusOr<int64_t> LoadFromMemory(const LoadableState& state);
  // Makes the making of the trainer and the loading of its state end soon.
  // Thread-safe.
  void EndStart();
  absl::Status TrainToTheEnd(const JobSpec& job);
  // Takes the next step, or leaves it out; sets result_ to what is known.
  absl::Status TakeStep(const JobSpec& job);
  // Runs a step whose loss or gradient is not a number again, and says where
  // that began.
  absl::Status RepeatBadStep(const JobSpec& job, StepResult* result);
  // Hashes what this rank's replicas hold alike after the newest step, if it
  // has replicas. On a CPU it sends the hash and keeps the checksums as
  // compared_; on a GPU it begins.
  absl::Status HashState();
  // Where others gather this rank's parameters: hashes its own slice after the
  // newest step, and the slices that it gathered after the next one. Both are
  // sent together when the result of the step that gathered them is known. The
  // trainer keeps the hashes of one such step, so HashGathered() is called
  // before the next HashOwnSlice(); it does nothing until a step has gathered.
  absl::Status HashOwnSlice();
  absl::Status HashGathered(int64_t known_step);
  absl::Status SendSliceHashes();
  // Sends the hash that a GPU was to make of a step whose result is known.
  absl::Status FinishHash(int64_t known_step);
  void SendStateHash(int64_t step, uint64_t hash);
  // Makes result_ that of the newest step; reports the one it replaces.
  absl::Status CatchUp(const JobSpec& job);
  absl::Status OpenData(const JobSpec& job);
  absl::StatusOr<Validation> Validate(const JobSpec& job, bool validates,
                                      bool evaluates);
  void ReportStep(const Trainer& trainer, const StepResult& result,
                  const std::optional<Validation>& validation);
  TimeBreakdown BreakdownOf(const Trainer& trainer, const StepResult& result);
  bool SendsTimelineOf(int64_t step) const;
  // When the step began, by the coordinator's clock.
  void AddBegin(const RankTimeline& timeline,
                protocol::StepDone* message) const;
  void AddLoad(protocol::StepDone* message);
  // Checkpoints (generation_run_checkpoints.cc): steps between those on a
  // schedule, asked for each step in turn. Aborted if this rank has heard of a
  // change too late.
  absl::StatusOr<int64_t> CheckpointIntervalAt(int64_t step);
  // Begin to write a checkpoint of the newest step: take the snapshot, and give
  // it to the writer once the step's result is known.
  absl::Status BeginCheckpoint(const JobSpec& job);
  absl::Status WriteSnapshot();
  // Takes the snapshots of the newest step, and its hashes, again that were
  // begun before it counted.
  absl::Status RetakeSnapshots(const JobSpec& job);
  CheckpointInfo InfoOf(const JobSpec& job, int64_t step) const;
  // Copies of the state in memory; generation_run_replicas.cc. Where the state
  // of `step`, which has been taken, or of the next one is to be copied: waits
  // until the last copy is where it should be. A peer that completes the next
  // step then knows that it is.
  absl::Status AwaitReplica(int64_t step);
  // Takes the copy of the newest step, if one is due.
  absl::Status TakeReplica(const JobSpec& job);
  absl::Status TakeReplicaNow(const JobSpec& job);
  // Before the first step: copies the state that was restored, unless enough
  // workers hold what it came from.
  absl::Status BeginReplicas(const JobSpec& job);
  // Hands it over once the step's result is known.
  absl::Status KeepReplica(int64_t known_step);
  // Keeps the state that the trainer of a failed generation still holds, and
  // reports the last steps that led to it, as the job may go on from there.
  void KeepStateOfFailure(const JobSpec& job, Trainer& trainer);
  // Puts the state of a generation that has stopped in order into memory, and
  // waits. OK once a stop is asked for, else Aborted.
  absl::Status Pause(const JobSpec& job);
  // These return false if the host has no memory for this rank's part.
  absl::StatusOr<bool> KeepStateOfPause(const JobSpec& job);
  bool KeepParts(const JobSpec& job, int64_t step,
                 const std::map<Rank, std::vector<StatePiece>>& parts);
  // Takes a snapshot of the newest step once the writer is idle. On CPUs, if
  // the host has no memory for a copy, the snapshot is the state itself.
  absl::StatusOr<std::shared_ptr<const StateSnapshot>> SnapshotOfState(
      const JobSpec& job);
  // The hash of this rank's parameters after the newest step. Called after its
  // checkpoint was written.
  absl::StatusOr<uint64_t> HashOfState();
  void ReportEnd(bool stopped, std::optional<uint64_t> parameter_hash);
  protocol::ToCoordinator NewMessage() const;

  const WorkerOptions& options_;
  Client* const client_;
  CheckpointWriter* const writer_;
  ReplicaKeeper* const replicas_;
  const std::shared_ptr<ReplicaClient> replica_client_;
  const Generation generation_;
  const protocol::StartGeneration message_;
  const Rank rank_;
  RemoteRendezvousStore store_;

  std::unique_ptr<CheckpointFolder> checkpoints_;  // While it trains.
  std::unique_ptr<EvaluationBatches> batches_;
  // State of training, used on its thread.
  int64_t first_step_ = 1;
  int64_t timeline_interval_ = 1;
  std::optional<StepResult> result_;  // The newest that is known.
  int64_t reported_step_ = 0;         // The newest; 0: none.
  ComparedState compared_;
  std::optional<int64_t> hashed_step_;     // Whose hash was begun and not sent.
  std::optional<int64_t> own_slice_step_;  // After which it was hashed.
  // The step that gathered the slices whose hashes were begun and not sent.
  std::optional<int64_t> gathered_step_;
  bool left_out_ = false;  // True if the newest step was left out.
  // The newest step's checkpoint, until the writer has it.
  std::optional<CheckpointWrite> begun_checkpoint_;
  std::shared_ptr<const StateSnapshot> newest_snapshot_;
  std::optional<ReplicaSnapshot> begun_replica_;  // Until the keeper has it.
  double replica_wait_s_ = 0;                     // Since the last report.
  double restore_s_ = 0;                          // How long LoadState() took.
  bool snapshot_refused_ = false;  // The newest, for want of host memory.
  bool stop_ = false;
  bool is_kept_ = false;  // The state after the last step is in memory.
  double last_loss_ = 0;
  bool on_cpu_ = false;           // Shared with the host's other processes.
  ProcessorTime processor_time_;  // At the last measured step.
  TimeBreakdown breakdown_;       // The last step that was measured,
  double breakdown_step_s_ = 0;   // which took this long; zero: none was.

  ProgressBoard progress_;
  std::atomic<RankActivity> activity_ = RankActivity::kStarting;
  std::atomic<bool> running_ = false;
  std::atomic<bool> stop_requested_ = false;
  std::atomic<bool> pause_requested_ = false;
  std::atomic<bool> aborted_ = false;
  std::atomic<bool> start_ended_ = false;  // EndStart() was called.
  std::atomic<bool> device_lost_ = false;
  std::atomic<bool> keeps_state_ = false;

  std::mutex mutex_;  // Guards what follows; Abort() comes from outside.
  std::condition_variable changed_;
  std::unique_ptr<CommunicatorFactory> communicators_;
  std::unique_ptr<Trainer> trainer_;
  bool ended_ = false;
  bool failure_is_reported_ = false;
  int64_t checkpoint_interval_;  // Steps; 0: no schedule.
  std::deque<protocol::CheckpointInterval> later_intervals_;
  int64_t last_interval_change_ = 0;  // The step of the last of them.

  std::thread thread_;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_AGENT_GENERATION_RUN_H_
