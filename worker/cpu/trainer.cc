#include "worker/cpu/trainer.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "planner/lower/lower.h"
#include "worker/communicate/communicator_set.h"
#include "worker/cpu/executor.h"
#include "worker/cpu/ops.h"
#include "worker/cpu/step_check.h"
#include "worker/train/arena.h"
#include "worker/train/gathered_parameters.h"
#include "worker/train/initialize.h"
#include "worker/train/moment_copies.h"
#include "worker/train/op_context.h"
#include "worker/train/trained_tokens.h"

namespace millrace {
namespace {

// Both Programs run on one set of arenas; a validation pass never runs during a
// step, so the step arena is as large as the larger of the two.
struct Programs {
  Program training;
  Program validation;

  int64_t persistent_bytes() const { return training.persistent_arena_bytes; }
  int64_t step_bytes() const {
    return std::max(training.step_arena_bytes, validation.step_arena_bytes);
  }
};

absl::StatusOr<std::unique_ptr<Programs>> BuildPrograms(
    const ModelSpec& model, const Layout& layout, const MeshCoordinates& rank) {
  auto programs = std::make_unique<Programs>();
  ASSIGN_OR_RETURN(programs->training,
                   BuildTrainingProgram(model, layout, rank));
  ASSIGN_OR_RETURN(programs->validation,
                   BuildValidationProgram(model, layout, rank.pipeline));
  CHECK(programs->training.persistent_arena_bytes ==
        programs->validation.persistent_arena_bytes);
  return programs;
}

absl::StatusOr<std::unique_ptr<Arenas>> AllocateArenas(
    const Programs& programs) {
  ASSIGN_OR_RETURN(MemoryBlock persistent,
                   MemoryBlock::Allocate(programs.persistent_bytes()));
  ASSIGN_OR_RETURN(MemoryBlock step,
                   MemoryBlock::Allocate(programs.step_bytes()));
  return std::make_unique<Arenas>(
      Arenas{.persistent = std::move(persistent), .step = std::move(step)});
}

// Members are destroyed last to first: the lanes stop before what they use
// goes.
class CpuTrainer final : public Trainer {
 public:
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(
      const TrainerOptions& options) {
    auto trainer = std::unique_ptr<CpuTrainer>(new CpuTrainer(options));
    RETURN_IF_ERROR(trainer->Build(options));
    return trainer;
  }

  const Program& program() const override { return programs_->training; }

  absl::StatusOr<std::vector<StatePiece>> ReadState() override {
    RETURN_IF_ERROR(ReadMoments());
    return PiecesAt(coordinates_);
  }

  absl::StatusOr<std::shared_ptr<const StateSnapshot>> TakeSnapshot() override {
    ASSIGN_OR_RETURN(const std::vector<StatePiece> state, ReadState());
    RETURN_IF_ERROR(StateSnapshot::Take(state, &snapshot_));
    return snapshot_;
  }

  absl::StatusOr<bool> HashOwnSlice() override {
    if (gathered_.after_step.empty()) return false;
    slice_hashes_.assign(static_cast<size_t>(layout_.group_data()), 0);
    AddHashes(gathered_.before_step);
    return true;
  }
  absl::Status HashGathered() override {
    AddHashes(gathered_.after_step);
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<uint64_t>> SliceHashes() override {
    return slice_hashes_;
  }

  absl::StatusOr<std::vector<StatePiece>> StateInPlace() override {
    return PiecesInPlace();
  }
  absl::Status TakeChanges() override { return absl::OkStatus(); }

  absl::StatusOr<std::vector<StatePiece>> StateToFill() override {
    return ReadState();
  }
  absl::Status FinishFilling(int64_t completed_steps) override {
    if (moment_copies_->are_needed()) {
      RETURN_IF_ERROR(moment_copies_->Write(
          Buffer<std::byte>(programs_->training.exp_avg_buffer),
          Buffer<std::byte>(programs_->training.exp_avg_sq_buffer)));
      moment_copies_->Release();
    }
    completed_steps_ = completed_steps;
    return absl::OkStatus();
  }

  int64_t completed_steps() const override { return completed_steps_; }

  absl::StatusOr<std::optional<StepResult>> RunStep(
      const StepRequest& request) override {
    return TakeStep(request, nullptr);
  }

  absl::StatusOr<CheckedStep> RepeatStep(const StepRequest& request) override {
    CHECK(completed_steps_ > 0);
    --completed_steps_;
    StepCheck check(&programs_->training, arenas_.get());
    ASSIGN_OR_RETURN(const StepResult result, TakeStep(request, &check));
    return check.findings().Outcome(result);
  }

  absl::Status LeaveOutStep() override {
    ++completed_steps_;
    return absl::OkStatus();
  }

  absl::StatusOr<std::optional<StepResult>> LastResult() override {
    return std::nullopt;  // RunStep() returned it.
  }

  absl::StatusOr<double> RunValidation(int64_t num_batches) override {
    if (num_batches < 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "validation over ", num_batches, " batches: at least one is needed"));
    }
    double sum = 0;
    double trained_share = 0;
    for (int64_t batch = 1; batch <= num_batches; ++batch) {
      ASSIGN_OR_RETURN(const double* scalars,
                       RunValidationPass(batch, /*vote=*/false));
      sum += scalars[kLossScalar];
      ASSIGN_OR_RETURN(
          const double share,
          batches_->TrainedShare(DataSplit::kValidation, batch,
                                 layout_.micro_batch * layout_.data));
      trained_share += share;
    }
    return MeanOfPasses(sum, trained_share);
  }

  absl::StatusOr<AnswerPass> RunAnswerPass(int64_t batch, bool vote) override {
    CHECK(layout_.trains_preferences());
    ASSIGN_OR_RETURN(const double* scalars, RunValidationPass(batch, vote));
    AnswerPass pass = {.vote = scalars[kStopVoteScalar] > 0};
    const Program& validation = programs_->validation;
    if (validation.answers_buffer >= 0) {
      const auto& answers = validation.buffers[validation.answers_buffer];
      const auto* values = reinterpret_cast<const float*>(arenas_->At(answers));
      pass.log_probabilities.assign(
          values, values + answers.bytes / static_cast<int64_t>(sizeof(float)));
    }
    return pass;
  }

  std::optional<KeptState> KeepState() override {
    KeptState kept;
    if (step_under_way_ && !CompleteUpdate(&kept.completed_step)) {
      return std::nullopt;
    }
    if (!ReadMoments().ok()) return std::nullopt;
    kept.completed_steps = completed_steps_;
    const int32_t copies =
        layout_.zero == 0 ? layout_.data : layout_.data_groups;
    const int32_t num_slices = layout_.data / copies;
    for (int32_t rank = 0; rank < layout_.num_ranks(); ++rank) {
      const MeshCoordinates other = CoordinatesOf(layout_, Rank{rank});
      // Other data ranks of the same slice hold the same, at the same places.
      MeshCoordinates like_this = other;
      like_this.data = coordinates_.data;
      if (!(like_this == coordinates_) ||
          other.data % num_slices != coordinates_.data % num_slices) {
        continue;
      }
      kept.parts[Rank{rank}] = OwnedPieces(PiecesAt(other));
    }
    return kept;
  }

  int64_t planned_bytes() const override {
    return programs_->persistent_bytes() + programs_->step_bytes();
  }
  int64_t allocated_bytes() const override {
    return arenas_->persistent.bytes() + arenas_->step.bytes();
  }

  int64_t device_bytes() const override { return allocated_bytes(); }

  void Abort() override {
    executor_->Abort();
    communicators_->Abort();
  }

 private:
  explicit CpuTrainer(const TrainerOptions& options)
      : job_(options.job),
        layout_(options.layout),
        rank_(options.rank),
        coordinates_(CoordinatesOf(options.layout, options.rank)),
        batches_(options.batches),
        progress_(options.progress) {}

  absl::Status Build(const TrainerOptions& options) {
    ASSIGN_OR_RETURN(programs_,
                     BuildPrograms(job_.model, layout_, coordinates_));
    RETURN_IF_ERROR(
        CheckBindings(AllCpuBinders().bound(),
                      {&programs_->training, &programs_->validation}));
    ASSIGN_OR_RETURN(arenas_, AllocateArenas(*programs_));
    CHECK(allocated_bytes() == planned_bytes());
    moment_copies_ = std::make_unique<MomentCopies>(programs_->training);
    gathered_ = GatheredPartsOf(programs_->training, coordinates_);
    if (!options.loader.has_value()) {
      InitializePieces(job_.model, PiecesInPlace(), job_.training.seed);
      return Connect(options);
    }
    LoadableState state;
    ASSIGN_OR_RETURN(state, StateToLoad());
    ASSIGN_OR_RETURN(
        const int64_t steps,
        LoadWhile(*options.loader, state, [&] { return Connect(options); }));
    return FinishFilling(steps);
  }

  // All that needs no contents of the state.
  absl::Status Connect(const TrainerOptions& options) {
    kernels_ = std::make_unique<KernelCache>(options.num_threads,
                                             job_.model.rope_factors);
    ASSIGN_OR_RETURN(
        CommunicatorSet communicators,
        CommunicatorSet::Create(layout_, rank_, *options.communicators));
    communicators_ =
        std::make_unique<CommunicatorSet>(std::move(communicators));
    ASSIGN_OR_RETURN(training_, Prepare(programs_->training, options.batches));
    ASSIGN_OR_RETURN(validation_,
                     Prepare(programs_->validation, options.batches));
    RETURN_IF_ERROR(kernels_->AllocateScratch());
    executor_ = std::make_unique<Executor>(
        Executor::Options{.name = absl::StrCat("rank ", ToInt(rank_)),
                          .progress = progress_,
                          .on_failure = [this] { communicators_->Abort(); }});
    return absl::OkStatus();
  }

  absl::StatusOr<StepResult> TakeStep(const StepRequest& request,
                                      RunObserver* observer) {
    step_began_s_ = MonotonicSeconds();
    moment_copies_->Release();
    inputs_.step = completed_steps_ + 1;
    inputs_.sample_shift = request.sample_shift;
    inputs_.learning_rate = LearningRateAt(job_.training, inputs_.step);
    ASSIGN_OR_RETURN(const double trained_share,
                     batches_->TrainedShare(DataSplit::kTraining, inputs_.step,
                                            job_.training.global_batch));
    ASSIGN_OR_RETURN(
        inputs_.token_scale,
        TokenScaleOf(trained_share, inputs_.step, job_.training.global_batch));
    SetVote(request.vote_to_stop,
            Buffer<double>(programs_->training.scalars_buffer));
    step_under_way_ = true;
    RETURN_IF_ERROR(executor_->Run(*training_, inputs_.step, observer));
    step_under_way_ = false;
    completed_steps_ = inputs_.step;

    StepResult result = ResultOfStep();
    result.timeline.emplace().rank = rank_;
    training_->FillTimeline(&*result.timeline);
    result.timeline->begin_s = executor_->began_s();
    return result;
  }

  // Returns the result of the step under way, once its scalars are summed over
  // the world.
  StepResult ResultOfStep() const {
    const double* scalars =
        Buffer<const double>(programs_->training.scalars_buffer);
    StepResult result{.step = inputs_.step,
                      .loss = scalars[kLossScalar] * inputs_.token_scale,
                      .gradient_norm = std::sqrt(scalars[kSquaredNormScalar]) *
                                       inputs_.token_scale,
                      .learning_rate = inputs_.learning_rate,
                      .stop = scalars[kStopVoteScalar] > 0,
                      .finite = std::isfinite(scalars[kLossScalar]) &&
                                std::isfinite(scalars[kSquaredNormScalar])};
    if (layout_.trains_preferences()) {
      result.preference = PreferenceMetricsOf(scalars, inputs_.token_scale);
    }
    result.step_time_s = MonotonicSeconds() - step_began_s_;
    return result;
  }

  // Sets the scalars that no instruction zeroes.
  void SetVote(bool vote, double* scalars) const {
    std::fill(scalars + kStopVoteScalar, scalars + NumStepScalars(layout_), 0);
    if (vote) scalars[kStopVoteScalar] = 1;
  }

  // Returns the pass's scalars, summed over the world.
  absl::StatusOr<const double*> RunValidationPass(int64_t batch, bool vote) {
    // A BufferId means something in its own Program only.
    const Program& validation = programs_->validation;
    double* scalars = reinterpret_cast<double*>(
        arenas_->At(validation.buffers[validation.scalars_buffer]));
    inputs_.step = batch;
    SetVote(vote, scalars);
    RETURN_IF_ERROR(executor_->Run(*validation_, batch));
    return scalars;
  }

  // Of a training step that failed: brings the state to the end of the step if
  // its update had begun, which changes state and needs no peer, and sets its
  // result: the sums over the world came before. False if that cannot be done.
  bool CompleteUpdate(std::optional<StepResult>* result) {
    const Program& program = programs_->training;
    std::vector<InstructionId> missing;
    bool has_begun = false;
    for (size_t i = 0; i < program.instructions.size(); ++i) {
      if (program.instructions[i].kind != OpKind::kAdamW) continue;
      const auto id = static_cast<InstructionId>(i);
      if (training_->IsDone(id)) {
        has_begun = true;
      } else {
        missing.push_back(id);
      }
    }
    if (!has_begun) return true;
    for (const InstructionId id : missing) {
      for (const InstructionId earlier : program.instructions[id].waits) {
        if (!training_->IsDone(earlier)) return false;
      }
      if (!training_->DoNow(id).ok()) return false;
    }
    step_under_way_ = false;
    ++completed_steps_;
    *result = ResultOfStep();
    return true;
  }

  void AddHashes(const std::vector<GatheredPart>& parts) {
    for (const GatheredPart& part : parts) {
      slice_hashes_[static_cast<size_t>(part.slice)] += XXH3_64bits_withSeed(
          Buffer<std::byte>(part.buffer) + part.offset_bytes,
          static_cast<size_t>(part.num_bytes), part.first_word);
    }
  }

  // Makes the copies of moments that are not stored in fp32.
  absl::Status ReadMoments() {
    if (!moment_copies_->are_needed()) return absl::OkStatus();
    const Program& program = programs_->training;
    return moment_copies_->Read(Buffer<std::byte>(program.exp_avg_buffer),
                                Buffer<std::byte>(program.exp_avg_sq_buffer));
  }

  // What a rank at `coordinates` would hold in this rank's memory, after
  // ReadMoments().
  std::vector<StatePiece> PiecesAt(const MeshCoordinates& coordinates) const {
    if (!moment_copies_->are_needed()) return PiecesInArena(coordinates);
    const Program& program = programs_->training;
    return DescribeState(
        program.parameters, layout_, coordinates,
        {.parameters = Buffer<float>(program.parameters_buffer),
         .exp_avg = moment_copies_->exp_avg(),
         .exp_avg_sq = moment_copies_->exp_avg_sq()});
  }

  // All that is stored in fp32.
  std::vector<StatePiece> PiecesInPlace() const {
    return PiecesInArena(coordinates_);
  }
  std::vector<StatePiece> PiecesInArena(
      const MeshCoordinates& coordinates) const {
    const Program& program = programs_->training;
    const bool has_moments = !moment_copies_->are_needed();
    return DescribeState(
        program.parameters, layout_, coordinates,
        {.parameters = Buffer<float>(program.parameters_buffer),
         .exp_avg =
             has_moments ? Buffer<float>(program.exp_avg_buffer) : nullptr,
         .exp_avg_sq =
             has_moments ? Buffer<float>(program.exp_avg_sq_buffer) : nullptr});
  }

  absl::StatusOr<std::unique_ptr<PreparedProgram>> Prepare(
      const Program& program, BatchSource* batches) {
    return PrepareProgram({.program = &program,
                           .layout = layout_,
                           .coordinates = coordinates_,
                           .arenas = arenas_.get(),
                           .kernels = kernels_.get(),
                           .inputs = &inputs_,
                           .training = &job_.training,
                           .batches = batches,
                           .communicators = communicators_.get()});
  }

  template <typename T>
  T* Buffer(BufferId id) const {
    return reinterpret_cast<T*>(arenas_->At(programs_->training.buffers[id]));
  }

  const JobSpec job_;
  const Layout layout_;
  const Rank rank_;
  const MeshCoordinates coordinates_;
  BatchSource* const batches_;
  ProgressBoard* const progress_;
  int64_t completed_steps_ = 0;
  bool step_under_way_ = false;              // Or failed.
  double step_began_s_ = 0;                  // The newest; monotonic.
  std::shared_ptr<StateSnapshot> snapshot_;  // The last one's memory.
  StepInputs inputs_;
  std::unique_ptr<Programs> programs_;
  std::unique_ptr<Arenas> arenas_;
  std::unique_ptr<MomentCopies> moment_copies_;
  GatheredParts gathered_;
  std::vector<uint64_t> slice_hashes_;
  std::unique_ptr<KernelCache> kernels_;
  std::unique_ptr<CommunicatorSet> communicators_;
  std::unique_ptr<PreparedProgram> training_;
  std::unique_ptr<PreparedProgram> validation_;
  std::unique_ptr<Executor> executor_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Trainer>> CreateCpuTrainer(
    const TrainerOptions& options) {
  CHECK(options.communicators != nullptr);
  CHECK(options.batches != nullptr);
  absl::StatusOr<std::unique_ptr<Trainer>> trainer =
      CpuTrainer::Create(options);
  if (!trainer.ok()) {
    return absl::Status(
        trainer.status().code(),
        absl::StrCat("rank ", ToInt(options.rank),
                     ", preparing to train: ", trainer.status().message()));
  }
  return trainer;
}

}  // namespace millrace
