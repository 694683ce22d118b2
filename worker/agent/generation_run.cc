#include "worker/agent/generation_run.h"

#include <algorithm>
#include <cmath>
#include <iostream>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "coordinator/protocol/convert.h"
#include "fault/checkpoint.h"
#include "fault/file_system.h"
#include "planner/job/job_file.h"
#include "planner/profile/profile_file.h"
#include "planner/program/program.h"
#include "worker/backend/agent_devices.h"
#include "worker/communicate/gloo_communicator.h"
#include "worker/cpu/trainer.h"
#include "worker/data/open_batches.h"
#include "worker/measure/profiler.h"
#include "worker/train/evaluate.h"
#include "worker/train/references.h"
#include "worker/train/starting_weights.h"

namespace millrace {
namespace {

constexpr absl::Duration kConnectTimeout = absl::Seconds(30);
// A timeline goes out this often over a run, and once early.
constexpr int64_t kTimelinesPerRun = 10;
constexpr int64_t kEarlyTimelineStep = 3;
constexpr double kLoadWindowSeconds = 0.5;

TimeBreakdown Scaled(const TimeBreakdown& breakdown, double factor) {
  return {.compute_s = breakdown.compute_s * factor,
          .exposed_tensor_comm_s = breakdown.exposed_tensor_comm_s * factor,
          .exposed_data_comm_s = breakdown.exposed_data_comm_s * factor,
          .bubble_s = breakdown.bubble_s * factor,
          .data_s = breakdown.data_s * factor,
          .other_s = breakdown.other_s * factor};
}

}  // namespace

GenerationRun::GenerationRun(const WorkerOptions& options, Client* client,
                             CheckpointWriter* writer, ReplicaKeeper* replicas,
                             Generation generation,
                             const protocol::StartGeneration& message)
    : options_(options),
      client_(client),
      writer_(writer),
      replicas_(replicas),
      replica_client_(std::make_shared<ReplicaClient>(options.secret)),
      generation_(generation),
      message_(message),
      rank_{message.rank()},
      store_(client, generation),
      checkpoint_interval_(message.checkpoint_interval_steps()) {
  absl::StatusOr<std::unique_ptr<CheckpointFolder>> checkpoints =
      CheckpointFolder::Open(message, options);
  if (checkpoints.ok()) checkpoints_ = *std::move(checkpoints);
  thread_ = std::thread([this, status = checkpoints.status()] { Run(status); });
}

GenerationRun::~GenerationRun() {
  Abort();
  thread_.join();
}

void GenerationRun::Abort() {
  aborted_ = true;
  EndStart();
  writer_->Abandon();
  replicas_->Abandon();
  std::lock_guard<std::mutex> lock(mutex_);
  if (trainer_ != nullptr) trainer_->Abort();
}

void GenerationRun::EndStart() {
  start_ended_ = true;
  store_.Abort();
  if (checkpoints_ != nullptr) checkpoints_->Abort();
  replica_client_->Abort();
  std::lock_guard<std::mutex> lock(mutex_);
  if (communicators_ != nullptr) communicators_->Abort();
}

bool GenerationRun::WaitUntilEnded(absl::Duration timeout) {
  std::unique_lock<std::mutex> lock(mutex_);
  return changed_.wait_for(lock, absl::ToChronoMilliseconds(timeout),
                           [this] { return ended_; });
}

protocol::ToCoordinator GenerationRun::NewMessage() const {
  protocol::ToCoordinator message;
  message.set_generation(ToInt(generation_));
  return message;
}

void GenerationRun::Run(absl::Status status) {
  const absl::StatusOr<JobSpec> job = ParseJob(message_.job_yaml(), "job.yaml");
  try {
    if (!status.ok()) {
      // No folder of checkpoints could be opened.
    } else if (!job.ok()) {
      status = job.status();
    } else if (message_.purpose() == protocol::GENERATION_PURPOSE_PROFILE) {
      status = Measure(*job);
    } else {
      status = Train(*job);
    }
  } catch (const std::bad_alloc&) {
    // The next try would end the same way, so the job is told.
    status = absl::ResourceExhaustedError(absl::StrCat(
        "rank ", ToInt(rank_), ": the host's memory does not suffice"));
  }
  // Most errors of CUDA are Internal, and leave the process without the device.
  device_lost_ =
      job.ok() && job->resources.uses_cuda() && absl::IsInternal(status);
  if (!status.ok()) ReportFailure(status);
  std::unique_ptr<Trainer> trainer;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    trainer = std::move(trainer_);
  }
  // Here, so that a device that hangs is noticed by who waits for the end.
  if (!status.ok() && running_ && !is_kept_ && trainer != nullptr) {
    KeepStateOfFailure(*job, *trainer);
  }
  begun_checkpoint_.reset();
  begun_replica_.reset();
  newest_snapshot_ = nullptr;
  trainer.reset();
  std::lock_guard<std::mutex> lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

void GenerationRun::ReportFailure(const absl::Status& status) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (aborted_ || std::exchange(failure_is_reported_, true)) return;
  protocol::ToCoordinator message = NewMessage();
  message.mutable_generation_failed()->set_code(
      static_cast<int>(status.code()));
  message.mutable_generation_failed()->set_message(
      std::string(status.message()));
  client_->SendReliably(std::move(message));
}

absl::Status GenerationRun::Measure(const JobSpec& job) {
  ProfilerOptions options = {
      .job = job,
      .num_ranks = message_.num_ranks(),
      .ranks_per_host = std::max(1, message_.ranks_per_host()),
      .rank = rank_,
      .num_threads = options_.num_threads,
      .tune_command = message_.tune_command()};
  HardwareProfile profile;
  if (job.resources.uses_cuda()) {
    ASSIGN_OR_RETURN(const WorkerGpu gpu, FindWorkerGpu(options_.gpu_bus_id));
    // There is more to measure, and it is quick to.
    options.time_budget = absl::Seconds(60);
    ASSIGN_OR_RETURN(profile, gpu.backend->MeasureHardwareProfile(
                                  options, gpu.device_idx, &store_));
  } else {
    RETURN_IF_ERROR(MakeCommunicators());
    options.communicators = communicators_.get();
    ASSIGN_OR_RETURN(profile, MeasureHardwareProfile(options));
  }
  if (rank_ != Rank{0}) return absl::OkStatus();
  protocol::ToCoordinator message = NewMessage();
  message.mutable_profile_measured()->set_profile_yaml(ProfileToYaml(profile));
  client_->SendReliably(std::move(message));
  return absl::OkStatus();
}

absl::Status GenerationRun::Train(const JobSpec& job) {
  const double began_s = MonotonicSeconds();
  if (const absl::Status data = OpenData(job); !data.ok()) {
    // Not DataLoss, which stands for a damaged checkpoint, and not tried again:
    // the data would be the same.
    return absl::FailedPreconditionError(
        absl::StrCat("data: ", data.message()));
  }
  const double data_s = MonotonicSeconds() - began_s;
  RETURN_IF_ERROR(BuildTrainer(job));
  const double made_s = MonotonicSeconds();
  bool has_starting_weights = false;
  if (job.training.trains_preferences()) {
    ASSIGN_OR_RETURN(has_starting_weights,
                     PrepareReferences(job, FromMessage(message_.layout()),
                                       rank_, *trainer_, *batches_));
  }
  if (!LoadsWhileMaking(job)) {
    RETURN_IF_ERROR(Restore(job, has_starting_weights));
    restore_s_ = MonotonicSeconds() - made_s;
  }
  protocol::ToCoordinator message = NewMessage();
  std::vector<StartPart> parts = {{"data", data_s}};
  for (StartPart& part : trainer_->start_parts()) {
    parts.push_back(std::move(part));
  }
  parts.push_back({"restore", restore_s_});
  // Recoveries end with this line; tests/bench/fault_times.py prints it.
  std::string line = absl::StrFormat(
      "generation %d: trainer made in %.2f s, restored in %.2f s",
      ToInt(generation_), made_s - began_s, restore_s_);
  for (const StartPart& part : parts) {
    absl::StrAppendFormat(&line, "; %s %.3f s", part.name, part.seconds);
    protocol::StartPart* sent =
        message.mutable_generation_running()->add_parts();
    sent->set_name(part.name);
    sent->set_seconds(part.seconds);
  }
  std::cerr << line << std::endl;
  running_ = true;
  message.mutable_generation_running()->set_completed_steps(
      trainer_->completed_steps());
  message.mutable_generation_running()->set_arena_bytes(
      trainer_->allocated_bytes());
  message.mutable_generation_running()->set_restore_s(restore_s_);
  message.mutable_generation_running()->set_from_memory(
      message_.has_replica_restore());
  for (const std::string& line : checkpoints_->TakeDamagedCopies()) {
    std::cerr << line << std::endl;
    message.mutable_generation_running()->add_damaged_copies(line);
  }
  client_->SendReliably(std::move(message));
  return TrainToTheEnd(job);
}

absl::Status GenerationRun::OpenData(const JobSpec& job) {
  ASSIGN_OR_RETURN(const std::vector<std::vector<std::string>> of_training,
                   PrefixesFromArguments(options_.data_prefixes));
  std::unique_ptr<BatchSource> training;
  ASSIGN_OR_RETURN(training, OpenBatches(job, of_training));
  std::map<std::string, std::vector<std::string>> prefixes;
  for (const std::string& entry : options_.evaluation_prefixes) {
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(entry, absl::MaxSplits('=', 1));
    prefixes[parts.first].push_back(parts.second);
  }
  std::vector<EvaluationSet> sets;
  for (auto& [name, of_set] : prefixes) {
    sets.push_back({.name = name, .prefixes = std::move(of_set)});
  }
  ASSIGN_OR_RETURN(batches_,
                   EvaluationBatches::Open(job, std::move(training), sets));
  return absl::OkStatus();
}

absl::Status GenerationRun::MakeCommunicators() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (aborted_) return absl::AbortedError("the generation has ended");
  ASSIGN_OR_RETURN(communicators_,
                   CreateGlooFactory({.store = &store_,
                                      .host_address = options_.host_address,
                                      .connect_timeout = kConnectTimeout,
                                      .hosts = {message_.hosts().begin(),
                                                message_.hosts().end()}}));
  return absl::OkStatus();
}

absl::Status GenerationRun::BuildTrainer(const JobSpec& job) {
  TrainerOptions options = {
      .job = job,
      .layout = FromMessage(message_.layout()),
      .rank = rank_,
      .num_threads = options_.num_threads,
      .tuning = FromMessage(message_.tuning()),
      .batches = batches_.get(),
      .abort_requested = &start_ended_,
      .progress = &progress_,
      .takes_replicas = message_.replica_interval_steps() > 0,
      .staged_bytes = message_.staged_bytes()};
  if (LoadsWhileMaking(job)) {
    options.loader = StateLoader{
        .load = [this](const LoadableState& state) { return LoadState(state); },
        .end = [this] { EndStart(); }};
  }
  std::unique_ptr<Trainer> trainer;
  if (job.resources.uses_cuda()) {
    ASSIGN_OR_RETURN(const WorkerGpu gpu, FindWorkerGpu(options_.gpu_bus_id));
    ASSIGN_OR_RETURN(
        trainer, gpu.backend->CreateTrainer(options, gpu.device_idx, &store_));
  } else {
    RETURN_IF_ERROR(MakeCommunicators());
    options.communicators = communicators_.get();
    ASSIGN_OR_RETURN(trainer, CreateCpuTrainer(options));
  }
  const MeshCoordinates place = CoordinatesOf(options.layout, rank_);
  const size_t program_idx = ProgramIdx(options.layout, place);
  if (program_idx >= static_cast<size_t>(message_.program_hashes_size()) ||
      ProgramHash(trainer->program()) !=
          message_.program_hashes(static_cast<int>(program_idx))) {
    return absl::FailedPreconditionError(absl::StrCat(
        "rank ", ToInt(rank_), " would run another Program for stage ",
        place.pipeline,
        " than was planned; are all machines running the same millrace?"));
  }
  std::lock_guard<std::mutex> lock(mutex_);
  if (aborted_) return absl::AbortedError("the generation has ended");
  trainer_ = std::move(trainer);
  return absl::OkStatus();
}

bool GenerationRun::LoadsWhileMaking(const JobSpec& job) const {
  const bool restores =
      message_.has_replica_restore() || !message_.restore_path().empty();
  return restores && !job.training.trains_preferences();
}

absl::Status GenerationRun::Restore(const JobSpec& job,
                                    bool has_starting_weights) {
  if (!message_.has_replica_restore() && message_.restore_path().empty()) {
    if (has_starting_weights) return absl::OkStatus();
    return LoadStartingWeights(job, trainer_.get());
  }
  LoadableState state;
  ASSIGN_OR_RETURN(state, trainer_->StateToLoad());
  ASSIGN_OR_RETURN(const int64_t steps, LoadState(state));
  return trainer_->FinishFilling(steps);
}

absl::StatusOr<int64_t> GenerationRun::LoadState(const LoadableState& state) {
  const double began_s = MonotonicSeconds();
  absl::StatusOr<int64_t> steps;
  if (message_.has_replica_restore()) {
    steps = LoadFromMemory(state);
  } else {
    const absl::StatusOr<CheckpointInfo> info = LoadCheckpoint(
        *checkpoints_->files(), checkpoints_->PathOf(message_.restore_path()),
        state.pieces, state.target.get(), &start_ended_);
    steps = info.ok() ? absl::StatusOr<int64_t>(info->step) : info.status();
  }
  restore_s_ = MonotonicSeconds() - began_s;
  // Before it ends what peers take part in: their errors would come first, and
  // the coordinator would not hear that this state is damaged.
  if (!steps.ok() && !start_ended_) ReportFailure(steps.status());
  return steps;
}

// Until a GPU's first timeline nothing is known of where its steps' time went;
// later steps are taken to be like the last one that was measured.
TimeBreakdown GenerationRun::BreakdownOf(const Trainer& trainer,
                                         const StepResult& result) {
  if (result.timeline.has_value()) {
    breakdown_ =
        BreakDown(trainer.program(), *result.timeline, result.step_time_s);
    breakdown_step_s_ = result.step_time_s;
    return breakdown_;
  }
  if (breakdown_step_s_ == 0) return {.other_s = result.step_time_s};
  return Scaled(breakdown_, result.step_time_s / breakdown_step_s_);
}

bool GenerationRun::SendsTimelineOf(int64_t step) const {
  return step % timeline_interval_ == 0 ||
         step == first_step_ + kEarlyTimelineStep - 1;
}

void GenerationRun::ReportStep(const Trainer& trainer, const StepResult& result,
                               const std::optional<Validation>& validation) {
  reported_step_ = result.step;
  stop_ = stop_ || result.stop;
  last_loss_ = result.loss;
  protocol::ToCoordinator message = NewMessage();
  protocol::StepDone* done = message.mutable_step_done();
  done->set_step(result.step);
  done->set_loss(result.loss);
  done->set_gradient_norm(result.gradient_norm);
  done->set_learning_rate(result.learning_rate);
  done->set_step_time_s(result.step_time_s);
  done->set_finite(result.finite);
  done->set_stage(trainer.program().stage);
  if (result.preference.has_value()) {
    protocol::PairRewards* rewards = done->mutable_rewards();
    rewards->set_chosen(result.preference->chosen_reward);
    rewards->set_rejected(result.preference->rejected_reward);
    rewards->set_accuracy(result.preference->accuracy);
  }
  *done->mutable_breakdown() = ToMessage(BreakdownOf(trainer, result));
  done->set_replica_wait_s(std::exchange(replica_wait_s_, 0));
  done->set_replica_error(replicas_->TakeError());
  if (result.timeline.has_value() && SendsTimelineOf(result.step)) {
    AddTimeline(*result.timeline, done);
    AddBegin(*result.timeline, done);
    AddLoad(done);
  }
  if (validation.has_value()) {
    if (validation->loss.has_value()) {
      done->set_validation_loss(*validation->loss);
    }
    for (const auto& [name, loss] : validation->evaluation) {
      (*done->mutable_evaluation_losses())[name] = loss;
    }
    done->set_validation_s(validation->seconds);
  }
  client_->SendReliably(std::move(message));
}

void GenerationRun::AddBegin(const RankTimeline& timeline,
                             protocol::StepDone* message) const {
  const std::optional<ClockOffset> offset = client_->clock_offset();
  if (timeline.begin_s == 0 || !offset.has_value()) return;
  // Within its uncertainty it may be none at all, as on one host.
  const bool is_none = std::abs(offset->seconds) <= offset->uncertainty;
  message->set_began_s(timeline.begin_s + (is_none ? 0 : offset->seconds));
  message->set_clock_uncertainty_s(offset->uncertainty);
}

void GenerationRun::AddLoad(protocol::StepDone* message) {
  if (!on_cpu_) return;
  const ProcessorTime now = ReadProcessorTime();
  protocol::HostLoad* load = message->mutable_load();
  load->set_seconds(now.clock_s - processor_time_.clock_s);
  load->set_busy_s(now.busy_s - processor_time_.busy_s);
  load->set_own_s(now.own_s - processor_time_.own_s);
  load->set_num_processors(now.num_processors);
  // The kernel counts in hundredths: of short steps, over several.
  if (load->seconds() >= kLoadWindowSeconds) processor_time_ = now;
}

absl::Status GenerationRun::CatchUp(const JobSpec& job) {
  std::optional<StepResult> last;
  ASSIGN_OR_RETURN(last, trainer_->LastResult());
  if (!last.has_value()) return absl::OkStatus();
  if (result_.has_value()) ReportStep(*trainer_, *result_, std::nullopt);
  result_ = std::move(last);
  return result_->finite ? absl::OkStatus() : RepeatBadStep(job, &*result_);
}

absl::Status GenerationRun::TakeStep(const JobSpec& job) {
  result_.reset();
  const int64_t step = trainer_->completed_steps() + 1;
  const auto& left_out = message_.left_out_steps();
  left_out_ =
      std::find(left_out.begin(), left_out.end(), step) != left_out.end();
  if (left_out_) {
    RETURN_IF_ERROR(CatchUp(job));
    return trainer_->LeaveOutStep();
  }
  // A GPU returns the result of the step before, and takes longest over its
  // first three.
  const int64_t num_first_steps = job.resources.uses_cuda() ? 3 : 1;
  activity_ = step < first_step_ + num_first_steps ? RankActivity::kFirstStep
                                                   : RankActivity::kStepping;
  const auto run = [&] {
    return trainer_->RunStep(
        {.vote_to_stop = votes_to_stop(), .measure = SendsTimelineOf(step)});
  };
  ASSIGN_OR_RETURN(result_, run());
  if (!result_.has_value() || result_->finite) return absl::OkStatus();
  RETURN_IF_ERROR(RepeatBadStep(job, &*result_));
  if (trainer_->completed_steps() == step) return absl::OkStatus();
  // A GPU took this step back, since the one before it was bad.
  activity_ = RankActivity::kStepping;
  return run().status();
}

absl::Status GenerationRun::TrainToTheEnd(const JobSpec& job) {
  const TrainingSpec& training = job.training;
  const auto is_due = [](int64_t step, int64_t interval) {
    return interval > 0 && step % interval == 0;
  };
  first_step_ = trainer_->completed_steps() + 1;
  on_cpu_ = !job.resources.uses_cuda();
  processor_time_ = ReadProcessorTime();
  timeline_interval_ =
      std::max<int64_t>(1, training.num_steps / kTimelinesPerRun);
  int64_t saved_step =
      message_.restore_path().empty() || message_.has_replica_restore()
          ? -1
          : first_step_ - 1;
  RETURN_IF_ERROR(BeginReplicas(job));
  while (trainer_->completed_steps() < training.num_steps && !stop_) {
    const int64_t step = trainer_->completed_steps() + 1;
    RETURN_IF_ERROR(TakeStep(job));
    const int64_t known_step = result_.has_value() ? result_->step : -1;
    RETURN_IF_ERROR(FinishHash(known_step));
    RETURN_IF_ERROR(HashGathered(known_step));
    const bool validates = is_due(step, training.validation_interval_steps);
    const bool evaluates = is_due(step, job.evaluation.interval_steps);
    ASSIGN_OR_RETURN(const int64_t interval, CheckpointIntervalAt(step));
    // An export is written from a checkpoint.
    const bool saves =
        is_due(step, interval) || is_due(step, job.exports.every);
    if (validates || evaluates || saves) activity_ = RankActivity::kExempt;
    // Before the step's parts, which are not committed if the replicas differ.
    const bool is_tested = step < first_step_ + message_.compared_steps();
    if (saves || is_tested || is_due(step, job.fault.replica_check_steps)) {
      RETURN_IF_ERROR(HashState());
    }
    // Validation belongs to this very step, so its result must be known.
    if (validates || evaluates) RETURN_IF_ERROR(CatchUp(job));
    std::optional<Validation> validation;
    if (validates || evaluates) {
      ASSIGN_OR_RETURN(validation, Validate(job, validates, evaluates));
    }
    if (result_.has_value()) ReportStep(*trainer_, *result_, validation);
    // A step's result may be known only when the next one is on its way.
    RETURN_IF_ERROR(KeepReplica(known_step));
    RETURN_IF_ERROR(AwaitReplica(step));
    if (saves) {
      RETURN_IF_ERROR(
          WriteSnapshot());  // Of the step before, where every step has one.
      RETURN_IF_ERROR(BeginCheckpoint(job));
      saved_step = step;
    }
    RETURN_IF_ERROR(TakeReplica(job));
    RETURN_IF_ERROR(KeepReplica(known_step));
    if (result_.has_value() && begun_checkpoint_.has_value() &&
        result_->step >= begun_checkpoint_->info.step) {
      activity_ = RankActivity::kExempt;
      RETURN_IF_ERROR(WriteSnapshot());
    }
  }
  activity_ = RankActivity::kExempt;
  result_.reset();
  RETURN_IF_ERROR(CatchUp(job));
  RETURN_IF_ERROR(FinishHash(trainer_->completed_steps()));
  if (gathered_step_.has_value()) RETURN_IF_ERROR(SendSliceHashes());
  if (result_.has_value()) ReportStep(*trainer_, *result_, std::nullopt);
  const bool stopped = trainer_->completed_steps() < training.num_steps;
  if (stopped) RETURN_IF_ERROR(Pause(job));
  std::optional<uint64_t> parameter_hash;
  const bool can_save = !message_.checkpoint_directory().empty();
  const bool saves_end = job.checkpoint.at_end || job.exports.every > 0 ||
                         (stopped && can_save) ||
                         saved_step == trainer_->completed_steps();
  RETURN_IF_ERROR(WriteSnapshot());
  if (saves_end && saved_step != trainer_->completed_steps()) {
    RETURN_IF_ERROR(HashState());
    RETURN_IF_ERROR(BeginCheckpoint(job));
    RETURN_IF_ERROR(WriteSnapshot());
  }
  RETURN_IF_ERROR(writer_->WaitUntilIdle(aborted_));
  if (saves_end && !snapshot_refused_) {
    ASSIGN_OR_RETURN(parameter_hash, HashOfState());
  }
  ReportEnd(stopped, parameter_hash);
  return absl::OkStatus();
}

absl::StatusOr<GenerationRun::Validation> GenerationRun::Validate(
    const JobSpec& job, bool validates, bool evaluates) {
  const double began_s = MonotonicSeconds();
  Validation validation;
  if (validates) {
    ASSIGN_OR_RETURN(validation.loss,
                     trainer_->RunValidation(job.training.validation_steps));
  }
  for (size_t set_idx = 0; evaluates && set_idx < batches_->num_sets();
       ++set_idx) {
    ASSIGN_OR_RETURN(validation.evaluation[batches_->name(set_idx)],
                     EvaluateSet(*trainer_, FromMessage(message_.layout()),
                                 *batches_, set_idx));
  }
  validation.seconds = MonotonicSeconds() - began_s;
  return validation;
}

void GenerationRun::ReportEnd(bool stopped,
                              std::optional<uint64_t> parameter_hash) {
  protocol::ToCoordinator message = NewMessage();
  protocol::WorkerFinished* finished = message.mutable_worker_finished();
  finished->set_steps(trainer_->completed_steps());
  finished->set_stopped(stopped);
  finished->set_saved(parameter_hash.has_value());
  if (parameter_hash.has_value()) {
    finished->set_parameter_hash(*parameter_hash);
  }
  finished->set_final_loss(last_loss_);
  finished->set_device_bytes(trainer_->device_bytes());
  client_->SendReliably(std::move(message));
}

}  // namespace millrace
