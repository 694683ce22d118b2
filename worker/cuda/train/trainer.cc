#include "worker/cuda/train/trainer.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "kernels/cuda/status.h"
#include "kernels/gemm/gemm_cublaslt.h"
#include "worker/cuda/device/device_arenas.h"
#include "worker/cuda/device/handles.h"
#include "worker/cuda/device/op.h"
#include "worker/cuda/nccl/nccl_endpoint.h"
#include "worker/cuda/ops/kernel_cache.h"
#include "worker/cuda/ops/ops.h"
#include "worker/cuda/train/cuda_trainer.h"
#include "worker/cuda/train/device_load_target.h"
#include "worker/cuda/train/executor.h"
#include "worker/cuda/train/initialize.h"
#include "worker/cuda/train/overrun.h"
#include "worker/cuda/train/rank_communication.h"
#include "worker/cuda/train/run_record.h"
#include "worker/cuda/train/snapshot.h"
#include "worker/cuda/train/state.h"
#include "worker/cuda/train/step_inputs.h"
#include "worker/cuda/train/step_programs.h"
#include "worker/train/gathered_parameters.h"
#include "worker/train/trained_tokens.h"

namespace millrace {
namespace {

// When a step hangs (CudaTrainerSettings::step_timeout), and how long the ranks
// take to tell each other where they stand.
constexpr double kStepsPerTimeout = 20;
constexpr absl::Duration kPatience = absl::Seconds(10);
// Memory for snapshots is made after the steps for which a recovery waits.
constexpr int64_t kStepsBeforeSnapshots = 4;

}  // namespace

// A graph that holds a collective keeps a communicator from ending: so what
// runs ends first, then the graphs go, then the communicators.
CudaTrainer::~CudaTrainer() {
  cudaSetDevice(device_idx_);
  const bool may_hang =
      aborted_ || !failure_.ok() ||
      (untaken_step_ != 0 &&
       cudaEventQuery(RecordOf(untaken_step_).end.get()) != cudaSuccess);
  if (may_hang && communication_ != nullptr) communication_->Abort();
  // Its error, if any, was reported or is of no interest any more.
  if (executor_ != nullptr) executor_->Synchronize().IgnoreError();
  publish_.clear();
  validation_.clear();
  training_.clear();
  communication_.reset();
}

void CudaTrainer::NoteStart(const char* part) {
  const double since_s = std::exchange(noted_s_, MonotonicSeconds());
  start_parts_.push_back({part, noted_s_ - since_s});
}

absl::Status CudaTrainer::Build(const TrainerOptions& options) {
  RETURN_IF_ERROR(BuildMemory());
  if (!options.loader.has_value()) {
    RETURN_IF_ERROR(Connect(options));
    RETURN_IF_ERROR(Initialize());
  } else {
    LoadableState state;
    ASSIGN_OR_RETURN(state, Destination());
    ASSIGN_OR_RETURN(
        const int64_t steps,
        LoadWhile(*options.loader, state, [&] { return Connect(options); }));
    NoteStart("waiting for the state");
    RETURN_IF_ERROR(FinishFilling(steps));
  }
  NoteStart("first parameters");
  NoteDeviceMemory();
  return absl::OkStatus();
}

absl::Status CudaTrainer::BuildMemory() {
  RETURN_IF_ERROR(CudaStatus(cudaSetDevice(device_idx_),
                             absl::StrCat("use GPU ", device_idx_)));
  NoteStart("device");
  ASSIGN_OR_RETURN(programs_,
                   BuildStepPrograms(job_.model, layout_, coordinates_));
  RETURN_IF_ERROR(CheckBindings(
      AllCudaBinders().bound(),
      {&programs_->training, &programs_->validation, &programs_->publish}));
  ASSIGN_OR_RETURN(DeviceArenas arenas,
                   DeviceArenas::Allocate(programs_->persistent_bytes(),
                                          programs_->step_bytes()));
  arenas_ = std::make_unique<DeviceArenas>(std::move(arenas));
  CHECK(allocated_bytes() == planned_bytes());
  state_ = std::make_unique<CudaState>(&programs_->training, coordinates_,
                                       arenas_.get());
  gathered_ = GatheredPartsOf(programs_->training, coordinates_);
  NoteStart("arenas");
  return absl::OkStatus();
}

absl::Status CudaTrainer::Connect(const TrainerOptions& options) {
  ASSIGN_OR_RETURN(kernels_, CudaKernelCache::Create(options.tuning));
  kernels_->set_rope_factors(job_.model.rope_factors);
  RETURN_IF_ERROR(BuildCommunication(options));
  ASSIGN_OR_RETURN(feed_, StepInputFeed::Create({.job = job_,
                                                 .layout = layout_,
                                                 .coordinates = coordinates_,
                                                 .batches = options.batches}));
  ASSIGN_OR_RETURN(snapshots_,
                   SnapshotTaker::Create({.device_idx = device_idx_,
                                          .program = &programs_->training,
                                          .staged_bytes = options.staged_bytes,
                                          .progress = progress_}));
  ASSIGN_OR_RETURN(
      executor_,
      CudaExecutor::Create({.name = name_,
                            .use_graphs = settings_.use_graphs,
                            // Ranks that wait for each other tell where.
                            .note_progress = settings_.note_progress &&
                                             communication_ != nullptr,
                            .measure_in_graphs = settings_.measure_in_graphs,
                            .state_is_read = [this](const Instruction& in) {
                              return snapshots_->IsRead(in);
                            }}));
  constexpr int kNumRecords = 3;
  for (int i = 0; i < kNumRecords; ++i) {
    ASSIGN_OR_RETURN(RunRecord record,
                     RunRecord::Create(NumStepScalars(layout_)));
    records_.push_back(std::move(record));
  }
  ASSIGN_OR_RETURN(other_run_, RunRecord::Create(NumStepScalars(layout_)));
  ASSIGN_OR_RETURN(check_,
                   CudaStepCheck::Create(&programs_->training, arenas_.get()));
  RETURN_IF_ERROR(
      Prepare(programs_->training, kWholeSequences, training_).status());
  RETURN_IF_ERROR(
      Prepare(programs_->validation, kWholeSequences, validation_).status());
  NoteStart("instructions");
  return absl::OkStatus();
}

absl::Status CudaTrainer::Initialize() {
  RETURN_IF_ERROR(InitializeOnDevice(job_.model, state_->ParametersOnDevice(),
                                     job_.training.seed, executor_->stream()));
  return Publish();
}

absl::Status CudaTrainer::BuildCommunication(const TrainerOptions& options) {
  if (layout_.num_ranks() == 1) return absl::OkStatus();
  CHECK(store_ != nullptr);
  static const std::atomic<bool> never = false;
  const std::atomic<bool>& abort_requested =
      options.abort_requested != nullptr ? *options.abort_requested : never;
  const PeerCopyOptions peers = {
      .layout = layout_,
      .rank = rank_,
      .store = store_,
      .arenas = arenas_.get(),
      .programs = {&programs_->training, &programs_->validation,
                   &programs_->publish}};
  ASSIGN_OR_RETURN(communication_,
                   RankCommunication::Create(peers, abort_requested));
  NoteStart("communicators");
  RETURN_IF_ERROR(communication_->ConnectCopies(peers, abort_requested));
  NoteStart("memory of peers");
  return absl::OkStatus();
}

absl::StatusOr<CudaPreparedProgram*> CudaTrainer::Prepare(
    const Program& program, int64_t num_documents, Variants& variants) {
  std::unique_ptr<CudaPreparedProgram>& prepared = variants[num_documents];
  if (prepared != nullptr) return prepared.get();
  const CudaOpContext context = {
      .program = &program,
      .layout = layout_,
      .coordinates = coordinates_,
      .arenas = arenas_.get(),
      .kernels = kernels_.get(),
      .inputs = &feed_->inputs(),
      .training = &job_.training,
      .communicators =
          communication_ == nullptr ? nullptr : communication_->communicators(),
      .peer_copies =
          communication_ == nullptr ? nullptr : communication_->copies(),
      .num_documents = num_documents,
      .deterministic = job_.training.deterministic};
  std::vector<CudaOp> ops;
  ops.reserve(program.instructions.size());
  for (const Instruction& instruction : program.instructions) {
    ASSIGN_OR_RETURN(CudaOp op, BindCudaOp(context, instruction));
    ops.push_back(std::move(op));
  }
  ASSIGN_OR_RETURN(prepared,
                   CudaPreparedProgram::Create(&program, std::move(ops)));
  return prepared.get();
}

// After the state has changed by other means than a step. Nothing to do in
// fp32, where the state is what forward passes read.
absl::Status CudaTrainer::Publish() {
  ASSIGN_OR_RETURN(CudaPreparedProgram * prepared,
                   Prepare(programs_->publish, kWholeSequences, publish_));
  RETURN_IF_ERROR(executor_->Run(*prepared));
  RETURN_IF_ERROR(EnqueueEnd(*prepared, *other_run_));
  return WaitFor(*other_run_);
}

absl::Status CudaTrainer::Begin() {
  RETURN_IF_ERROR(failure_);
  if (aborted_) return absl::AbortedError(absl::StrCat(name_, ": aborted"));
  return CudaStatus(cudaSetDevice(device_idx_),
                    absl::StrCat("use GPU ", device_idx_));
}

absl::StatusOr<std::optional<StepResult>> CudaTrainer::RunStep(
    const StepRequest& request) {
  RETURN_IF_ERROR(Begin());
  std::optional<StepResult> result;
  // The events of a measured step are read before the next one's overwrite
  // them.
  if (request.measure && untaken_step_ != 0 &&
      RecordOf(untaken_step_).measured != nullptr) {
    ASSIGN_OR_RETURN(result, TakeResult());
  }
  const int64_t step = completed_steps_ + 1;
  RunRecord& record = RecordOf(step);
  record.follows = untaken_step_ != 0 && !paused_;
  record.step = step;
  if (absl::Status status = EnqueueStep(request, record); !status.ok()) {
    return Fail(status, absl::StrCat("step ", step));
  }
  completed_steps_ = step;
  pace_.Launched(MonotonicSeconds(),
                 untaken_step_ == 0 || HasEnded(untaken_step_));
  if (progress_ != nullptr) progress_->BeginStep(step);
  paused_ = false;
  if (untaken_step_ != 0) {
    ASSIGN_OR_RETURN(result, TakeResult());
  }
  untaken_step_ = step;
  if (result.has_value() && !result->finite) {
    RETURN_IF_ERROR(TakeBackStep());
    return result;
  }
  feed_->Prefetch(step + 1);
  if (++steps_run_ >= kStepsBeforeSnapshots && expects_snapshots_ &&
      state_->has_float_moments()) {
    if (snapshots_->AllocateStaging()) NoteDeviceMemory();
    snapshots_->Prepare(state_->PiecesOnDevice());
  }
  return result;
}

absl::Status CudaTrainer::EnqueueStep(const StepRequest& request,
                                      RunRecord& record, CudaStepCheck* check) {
  const cudaStream_t stream = executor_->stream();
  RETURN_IF_ERROR(record.start.Record(stream));
  ASSIGN_OR_RETURN(
      const int64_t num_documents,
      feed_->EnqueueTrainingStep(record.step, request,
                                 Scalars(programs_->training), stream));
  ASSIGN_OR_RETURN(CudaPreparedProgram * prepared,
                   Prepare(programs_->training, num_documents, training_));
  record.token_scale = 1 / feed_->trained_share();
  record.learning_rate = LearningRateAt(job_.training, record.step);
  const bool measure = request.measure && check == nullptr;
  record.measured = measure ? prepared : nullptr;
  const bool had_graph = prepared->has_graph();
  if (!measure && check == nullptr) {
    RETURN_IF_ERROR(executor_->MakeReady(*prepared));
  }
  RETURN_IF_ERROR(AwaitNearEnd());
  RETURN_IF_ERROR(check != nullptr ? executor_->RunObserved(*prepared, *check)
                  : measure        ? executor_->RunMeasured(*prepared)
                                   : executor_->Run(*prepared));
  RETURN_IF_ERROR(EnqueueEnd(*prepared, record));
  if (had_graph != prepared->has_graph()) NoteDeviceMemory();
  return absl::OkStatus();
}

absl::Status CudaTrainer::AwaitNearEnd() {
  if (untaken_step_ == 0 || communication_ == nullptr) return absl::OkStatus();
  const absl::Duration left =
      absl::Seconds(pace_.NextAt() - MonotonicSeconds());
  if (left <= absl::ZeroDuration()) return absl::OkStatus();
  const absl::Status status =
      WaitForEnd(RecordOf(untaken_step_), left, aborted_, communication_.get());
  return absl::IsDeadlineExceeded(status) ? absl::OkStatus() : status;
}

bool CudaTrainer::HasEnded(int64_t step) {
  return cudaEventQuery(RecordOf(step).end.get()) != cudaErrorNotReady;
}

absl::StatusOr<StepResult> CudaTrainer::TakeResult() {
  const bool runs = !HasEnded(untaken_step_);
  RETURN_IF_ERROR(WaitForStep());
  std::optional<double> seen_s;
  if (runs) seen_s = MonotonicSeconds();
  const RunRecord& record = RecordOf(untaken_step_);
  untaken_step_ = 0;
  StepResult result = ResultOf(record);
  ASSIGN_OR_RETURN(
      result.step_time_s,
      record.end.SecondsSince(record.follows ? RecordOf(record.step - 1).end
                                             : record.start));
  step_time_s_ = result.step_time_s;
  pace_.Ended(step_time_s_, seen_s);
  if (record.measured != nullptr) {
    ASSIGN_OR_RETURN(result.timeline, record.measured->ReadTimeline());
    result.timeline->rank = rank_;
    NoteDeviceMemory();
  }
  return result;
}

absl::StatusOr<std::optional<StepResult>> CudaTrainer::LastResult() {
  RETURN_IF_ERROR(Begin());
  if (untaken_step_ == 0) return std::nullopt;
  paused_ = true;
  ASSIGN_OR_RETURN(const StepResult result, TakeResult());
  if (!result.finite) RETURN_IF_ERROR(ReleaseUpdates());
  return result;
}

absl::Status CudaTrainer::WaitForAll() {
  paused_ = true;
  return untaken_step_ == 0 ? absl::OkStatus() : WaitForStep();
}

absl::Status CudaTrainer::LeaveOutStep() {
  RETURN_IF_ERROR(Begin());
  CHECK(untaken_step_ == 0) << "its record would be another step's";
  ++completed_steps_;
  paused_ = true;
  return absl::OkStatus();
}

absl::Status CudaTrainer::WaitForStep() {
  const absl::Status status = WaitFor(RecordOf(untaken_step_));
  if (status.ok()) return status;
  const std::string place = absl::StrCat("step ", untaken_step_);
  if (!absl::IsDeadlineExceeded(status) || communication_ == nullptr ||
      !settings_.note_progress) {
    return Fail(status, place);
  }
  RankProgress progress = {.step = untaken_step_};
  const absl::Duration patience = std::min(kPatience, settings_.step_timeout);
  const auto completed = executor_->ReadProgress(patience);
  if (!completed.ok()) return Fail(completed.status(), place);
  progress.completed = *completed;
  return Fail(
      ExplainHang(job_.model, layout_, rank_, progress, *store_, kPatience),
      place);
}

absl::Status CudaTrainer::WaitFor(const RunRecord& record) const {
  const absl::Duration timeout =
      settings_.step_timeout + kStepsPerTimeout * absl::Seconds(step_time_s_);
  if (progress_ == nullptr || communication_ == nullptr ||
      !settings_.note_progress) {
    return WaitForEnd(record, timeout, aborted_, communication_.get());
  }
  return WaitAndShow(record, {timeout, absl::Seconds(step_time_s_)}, aborted_,
                     communication_.get(), executor_.get(), progress_);
}

absl::Status CudaTrainer::Fail(const absl::Status& status,
                               absl::string_view place) {
  if (failure_.ok()) {
    failure_ =
        absl::Status(status.code(),
                     absl::StrCat(name_, ", ", place, ": ", status.message()));
    if (communication_ != nullptr) communication_->Abort();
  }
  return failure_;
}

absl::StatusOr<double> CudaTrainer::RunValidation(int64_t num_batches) {
  if (num_batches < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "validation over ", num_batches, " batches: at least one is needed"));
  }
  RETURN_IF_ERROR(Begin());
  // So that a pass is waited for alone, and a step's failure is called its own.
  RETURN_IF_ERROR(WaitForAll());
  double sum = 0;
  double trained_share = 0;
  for (int64_t batch = 1; batch <= num_batches; ++batch) {
    const absl::StatusOr<const double*> scalars =
        RunValidationPass(batch, /*vote=*/false);
    if (!scalars.ok()) {
      return Fail(scalars.status(), absl::StrCat("validation pass ", batch));
    }
    sum += (*scalars)[kLossScalar];
    trained_share += feed_->trained_share();
  }
  return MeanOfPasses(sum, trained_share);
}

absl::StatusOr<AnswerPass> CudaTrainer::RunAnswerPass(int64_t batch,
                                                      bool vote) {
  CHECK(layout_.trains_preferences());
  RETURN_IF_ERROR(Begin());
  RETURN_IF_ERROR(WaitForAll());
  const std::string place = absl::StrCat("pass ", batch, " over answers");
  const absl::StatusOr<const double*> scalars = RunValidationPass(batch, vote);
  if (!scalars.ok()) return Fail(scalars.status(), place);
  AnswerPass pass = {.vote = (*scalars)[kStopVoteScalar] > 0};
  const Program& validation = programs_->validation;
  if (validation.answers_buffer < 0) return pass;
  const Buffer& answers = validation.buffers[validation.answers_buffer];
  const auto num_bytes = static_cast<size_t>(answers.bytes);
  pass.log_probabilities.resize(num_bytes / sizeof(float));
  const absl::Status copied =
      CudaStatus(cudaMemcpy(pass.log_probabilities.data(), arenas_->At(answers),
                            num_bytes, cudaMemcpyDeviceToHost),
                 "copy log-probabilities of answers to the host");
  if (!copied.ok()) return Fail(copied, place);
  return pass;
}

absl::StatusOr<const double*> CudaTrainer::RunValidationPass(int64_t batch,
                                                             bool vote) {
  ASSIGN_OR_RETURN(
      const int64_t num_documents,
      feed_->EnqueueValidationPass(batch, vote, Scalars(programs_->validation),
                                   executor_->stream()));
  ASSIGN_OR_RETURN(CudaPreparedProgram * prepared,
                   Prepare(programs_->validation, num_documents, validation_));
  RETURN_IF_ERROR(executor_->Run(*prepared));
  RETURN_IF_ERROR(EnqueueEnd(*prepared, *other_run_));
  RETURN_IF_ERROR(WaitFor(*other_run_));
  return other_run_->values();
}

absl::StatusOr<std::vector<StatePiece>> CudaTrainer::ReadState() {
  RETURN_IF_ERROR(StopReading());
  RETURN_IF_ERROR(state_->Download());
  return state_->HostPieces();
}

absl::StatusOr<std::shared_ptr<const StateSnapshot>>
CudaTrainer::TakeSnapshot() {
  RETURN_IF_ERROR(Begin());
  if (!state_->has_float_moments()) {
    // The host widens moments, and training waits meanwhile.
    ASSIGN_OR_RETURN(const std::vector<StatePiece> on_host, ReadState());
    RETURN_IF_ERROR(StateSnapshot::Take(on_host, &widened_));
    return widened_;
  }
  const std::vector<StatePiece> state = state_->PiecesOnDevice();
  if (snapshots_->AllocateStaging()) NoteDeviceMemory();
  ASSIGN_OR_RETURN(const std::shared_ptr<CudaSnapshot> snapshot,
                   snapshots_->Next(state));
  // Copies to memory that is not page-locked hold up the host: a step that
  // hangs must be noticed before them.
  if (!snapshot->is_pinned()) RETURN_IF_ERROR(WaitForAll());
  RETURN_IF_ERROR(snapshots_->Enqueue(
      *snapshot, state,
      untaken_step_ == 0 ? nullptr : &RecordOf(untaken_step_).end));
  return snapshot;
}

// Nothing reads the state any more when it may be changed.
absl::Status CudaTrainer::StopReading() {
  RETURN_IF_ERROR(Begin());
  RETURN_IF_ERROR(WaitForAll());
  return snapshots_->WaitForCopies();
}

absl::StatusOr<std::vector<StatePiece>> CudaTrainer::StateInPlace() {
  RETURN_IF_ERROR(StopReading());
  return state_->PiecesOnDevice();
}

absl::Status CudaTrainer::TakeChanges() {
  RETURN_IF_ERROR(Begin());
  const absl::Status status = Publish();
  return status.ok() ? status : Fail(status, "taking changed parameters");
}

absl::StatusOr<std::vector<StatePiece>> CudaTrainer::StateToFill() {
  RETURN_IF_ERROR(StopReading());
  fills_device_ = false;
  return state_->HostPieces();
}

absl::StatusOr<LoadableState> CudaTrainer::StateToLoad() {
  RETURN_IF_ERROR(StopReading());
  return Destination();
}

absl::StatusOr<LoadableState> CudaTrainer::Destination() {
  LoadableState state;
  fills_device_ = state_->has_float_moments();
  if (fills_device_) {
    state.pieces = state_->PiecesOnDevice();
    ASSIGN_OR_RETURN(state.target, DeviceLoadTarget::Create());
  } else {  // The host narrows moments.
    ASSIGN_OR_RETURN(state.pieces, state_->HostPieces());
  }
  return state;
}

absl::Status CudaTrainer::FinishFilling(int64_t completed_steps) {
  RETURN_IF_ERROR(Begin());
  if (!std::exchange(fills_device_, false)) RETURN_IF_ERROR(state_->Upload());
  state_->ReleaseHost();
  untaken_step_ = 0;
  completed_steps_ = completed_steps;
  RETURN_IF_ERROR(ReleaseUpdates());
  const absl::Status status = Publish();
  return status.ok() ? status : Fail(status, "loading a state");
}

void CudaTrainer::Abort() {
  aborted_ = true;
  if (communication_ != nullptr) communication_->Abort();
}

void CudaTrainer::NoteDeviceMemory() {
  size_t free_bytes = 0, total_bytes = 0;
  if (cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess) return;
  device_bytes_ =
      std::max(device_bytes_, static_cast<int64_t>(total_bytes - free_bytes));
}

absl::StatusOr<std::unique_ptr<Trainer>> CreateCudaTrainer(
    const TrainerOptions& options, int32_t device_idx, RendezvousStore* store,
    const CudaTrainerSettings& settings) {
  CHECK(options.batches != nullptr);
  auto trainer =
      std::make_unique<CudaTrainer>(options, device_idx, store, settings);
  const absl::Status status = trainer->Build(options);
  if (!status.ok()) {
    return absl::Status(
        status.code(),
        absl::StrCat("rank ", ToInt(options.rank),
                     ", preparing to train: ", status.message()));
  }
  return trainer;
}

void WarmUpCuda(int32_t device_idx) {
  if (cudaSetDevice(device_idx) != cudaSuccess) return;
  if (cudaFree(nullptr) != cudaSuccess) return;
  BeginCublasLt().IgnoreError();
  WarmUpNccl(device_idx).IgnoreError();
}

}  // namespace millrace
