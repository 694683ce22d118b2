#include "python/native/trainer.h"

#include <exception>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/files.h"
#include "base/ids.h"
#include "base/status_macros.h"
#include "coordinator/planning.h"
#include "fault/checkpoint.h"
#include "fault/file_system.h"
#include "planner/explain/layout_name.h"
#include "planner/frameworks/model_folder.h"
#include "planner/job/job_file.h"
#include "planner/job/object_path.h"
#include "planner/profile/profile_file.h"
#include "python/native/given_batches.h"
#include "worker/backend/agent_devices.h"
#include "worker/backend/cuda_backend.h"
#include "worker/communicate/directory_rendezvous_store.h"
#include "worker/communicate/gloo_communicator.h"
#include "worker/communicate/memory_rendezvous_store.h"
#include "worker/cpu/trainer.h"
#include "worker/measure/profiler.h"
#include "worker/train/starting_weights.h"

using millrace::AgentDevices;
using millrace::CheckpointInfo;
using millrace::CommunicatorFactory;
using millrace::DeviceFacts;
using millrace::HardwareProfile;
using millrace::JobSpec;
using millrace::Plan;
using millrace::Rank;
using millrace::RendezvousStore;
using millrace::StatePiece;
using millrace::StepResult;
using millrace::Trainer;

// The rank that a caller holds.
struct millrace_trainer {
  JobSpec job;
  Rank rank{};
  int32_t num_ranks = 1;
  AgentDevices devices;
  std::unique_ptr<RendezvousStore> store;
  std::unique_ptr<CommunicatorFactory> communicators;
  Plan plan;
  std::string layout;
  std::vector<std::string> host_warnings;
  std::string warnings;
  std::unique_ptr<millrace::GivenBatches> batches;
  // After what it borrows, so destroyed first.
  std::unique_ptr<Trainer> trainer;
  std::vector<StatePiece> pieces;  // Whose names state borrows.
  std::vector<millrace_state_piece> state;
  int64_t num_saves = 0;
};

namespace millrace {
namespace {

// Ranks plan and open their data at different speeds.
constexpr absl::Duration kRendezvousTimeout = absl::Minutes(10);
constexpr char kPlanKey[] = "plan";
constexpr char kProfileKey[] = "profile";

thread_local std::string last_error;

// Runs `body`, and turns its error, or an exception, into a code and a text.
template <typename Body>
int32_t Guarded(const Body& body) {
  absl::Status status;
  try {
    status = body();
  } catch (const std::bad_alloc&) {
    status = absl::ResourceExhaustedError("the host's memory does not suffice");
  } catch (const std::exception& error) {
    status = absl::InternalError(error.what());
  }
  last_error = std::string(status.message());
  return static_cast<int32_t>(status.code());
}

absl::Status CheckOptions(const millrace_trainer_options& options) {
  if (options.job_file == nullptr || *options.job_file == '\0') {
    return absl::InvalidArgumentError("no job file is named");
  }
  if (options.num_ranks < 1 || options.rank < 0 ||
      options.rank >= options.num_ranks || options.num_local_ranks < 1 ||
      options.local_rank < 0 || options.local_rank >= options.num_local_ranks ||
      options.num_local_ranks > options.num_ranks) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", options.rank, " of ", options.num_ranks, ", and ",
                     options.local_rank, " of ", options.num_local_ranks,
                     " on its host, cannot be; ranks count from 0"));
  }
  if (options.num_ranks > 1 && (options.rendezvous_folder == nullptr ||
                                *options.rendezvous_folder == '\0')) {
    return absl::InvalidArgumentError(absl::StrCat(
        options.num_ranks,
        " ranks need a rendezvous folder, empty and seen by all of them"));
  }
  return absl::OkStatus();
}

absl::Status MakeCommunicators(const millrace_trainer_options& options,
                               millrace_trainer& rank) {
  if (rank.job.resources.uses_cuda()) return absl::OkStatus();
  ASSIGN_OR_RETURN(
      rank.communicators,
      CreateGlooFactory({.store = rank.store.get(),
                         .host_address = options.host_address == nullptr
                                             ? "127.0.0.1"
                                             : options.host_address,
                         .connect_timeout = kRendezvousTimeout}));
  return absl::OkStatus();
}

absl::StatusOr<HardwareProfile> Measure(const millrace_trainer& rank,
                                        int32_t ranks_per_host) {
  ProfilerOptions options = {.job = rank.job,
                             .num_ranks = rank.num_ranks,
                             .ranks_per_host = ranks_per_host,
                             .rank = rank.rank,
                             .num_threads = rank.devices.threads_per_device,
                             .communicators = rank.communicators.get()};
  if (!rank.job.resources.uses_cuda()) return MeasureHardwareProfile(options);
  ASSIGN_OR_RETURN(CudaBackend* const backend, LoadCudaBackend());
  return backend->MeasureHardwareProfile(options, rank.devices.first_device_idx,
                                         rank.store.get());
}

// The text that one rank has, or why it has none, as a value of the store.
std::string Encoded(const absl::StatusOr<std::string>& value) {
  if (value.ok()) return absl::StrCat("+", *value);
  return absl::StrCat(static_cast<int>(value.status().code()), " ",
                      value.status().message());
}

absl::StatusOr<std::string> Decoded(const std::string& text) {
  if (text.starts_with("+")) return text.substr(1);
  const std::vector<std::string> parts =
      absl::StrSplit(text, absl::MaxSplits(' ', 1));
  int code = static_cast<int>(absl::StatusCode::kUnknown);
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &code)) {
    return absl::DataLossError(
        absl::StrCat("the rendezvous folder holds '", text,
                     "', which no rank writes; name one that is empty"));
  }
  return absl::Status(static_cast<absl::StatusCode>(code), parts[1]);
}

// The text that `make` gives on rank 0, on every rank. Its error too, so that
// no rank waits for one that has failed.
template <typename Make>
absl::StatusOr<std::string> FromRankZero(const millrace_trainer& rank,
                                         const std::string& key,
                                         const Make& make) {
  if (rank.rank == Rank{0}) {
    absl::StatusOr<std::string> made = make();
    RETURN_IF_ERROR(rank.store->Set(key, Encoded(made)));
    return made;
  }
  ASSIGN_OR_RETURN(const std::string text,
                   rank.store->Get(key, kRendezvousTimeout));
  return Decoded(text);
}

// The profile that rank 0 finds for the job; where it finds none, all ranks
// measure one and `is_new` is set.
absl::StatusOr<HardwareProfile> FindOrMeasure(const millrace_trainer& rank,
                                              const DeviceFacts& devices,
                                              bool* is_new) {
  ASSIGN_OR_RETURN(
      const std::string found,
      FromRankZero(rank, kProfileKey, [&]() -> absl::StatusOr<std::string> {
        const absl::StatusOr<HardwareProfile> profile =
            FindProfile(rank.job, devices);
        if (absl::IsNotFound(profile.status())) return std::string();
        RETURN_IF_ERROR(profile.status());
        return ProfileToYaml(*profile);
      }));
  *is_new = found.empty();
  return *is_new ? Measure(rank, devices.ranks_per_host)
                 : ParseProfile(found, "the profile of rank 0");
}

// The job as it is planned and trained here. The caller decides when to save,
// and training waits for it (Save() takes no snapshot). So the plan stages
// nothing (TrainerOptions::staged_bytes), and a trainer on a GPU puts no
// page-locked memory of the host aside.
JobSpec WithoutSnapshots(JobSpec job) {
  job.checkpoint.interval_steps = 0;
  job.checkpoint.policy = "fixed";
  job.exports.every = 0;
  job.fault.replica_interval_steps = 0;
  return job;
}

// Rank 0 plans; the others take its layout.
absl::Status MakePlan(int32_t ranks_per_host, millrace_trainer& rank,
                      KernelTuning* tuning) {
  const DeviceFacts devices = {
      .num_devices = rank.num_ranks,
      .threads_per_device = rank.devices.threads_per_device,
      .ranks_per_host = ranks_per_host,
      .machine = rank.devices.machine,
      .machines = {rank.devices.machine},
      .memory_bytes = rank.devices.memory_bytes};
  RETURN_IF_ERROR(CheckRunnable(rank.job, devices));
  bool is_new = false;
  ASSIGN_OR_RETURN(const HardwareProfile profile,
                   FindOrMeasure(rank, devices, &is_new));
  *tuning = profile.tuning;
  ASSIGN_OR_RETURN(
      const std::string text,
      FromRankZero(rank, kPlanKey, [&]() -> absl::StatusOr<std::string> {
        if (is_new) {
          RETURN_IF_ERROR(KeepProfile(rank.job, devices, "", profile).status());
        }
        ASSIGN_OR_RETURN(rank.plan, PlanForDevices(WithoutSnapshots(rank.job),
                                                   devices, profile));
        return PlanRecordToJson(
            {.layout = rank.plan.layout,
             .step_time_s = rank.plan.prediction.step_time_s,
             .program_hashes = rank.plan.program_hashes,
             .ranks_per_host = ranks_per_host});
      }));
  if (rank.rank == Rank{0}) return absl::OkStatus();
  ASSIGN_OR_RETURN(const PlanRecord record, PlanRecordFromJson(text));
  rank.plan.layout = record.layout;
  rank.plan.prediction.step_time_s = record.step_time_s;
  rank.plan.program_hashes = record.program_hashes;
  return absl::OkStatus();
}

absl::Status BuildTrainer(millrace_trainer& rank, const KernelTuning& tuning) {
  rank.batches = std::make_unique<GivenBatches>(
      &rank.job, rank.devices.threads_per_device);
  TrainerOptions options = {.job = WithoutSnapshots(rank.job),
                            .layout = rank.plan.layout,
                            .rank = rank.rank,
                            .num_threads = rank.devices.threads_per_device,
                            .communicators = rank.communicators.get(),
                            .tuning = tuning,
                            .batches = rank.batches.get()};
  if (rank.job.resources.uses_cuda()) {
    ASSIGN_OR_RETURN(CudaBackend* const backend, LoadCudaBackend());
    ASSIGN_OR_RETURN(rank.trainer, backend->CreateTrainer(
                                       options, rank.devices.first_device_idx,
                                       rank.store.get()));
  } else {
    ASSIGN_OR_RETURN(rank.trainer, CreateCpuTrainer(options));
  }
  const size_t program_idx =
      ProgramIdx(rank.plan.layout, CoordinatesOf(rank.plan.layout, rank.rank));
  if (ProgramHash(rank.trainer->program()) !=
      rank.plan.program_hashes.at(program_idx)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "rank ", ToInt(rank.rank),
        " would run another Program than rank 0 "
        "planned; do all ranks load the same library and read the same job?"));
  }
  return LoadStartingWeights(rank.job, rank.trainer.get());
}

absl::StatusOr<std::unique_ptr<millrace_trainer>> Open(
    const millrace_trainer_options& options) {
  RETURN_IF_ERROR(CheckOptions(options));
  auto rank = std::make_unique<millrace_trainer>();
  ASSIGN_OR_RETURN(rank->job, LoadJobWithFolder(options.job_file));
  if (rank->job.training.trains_preferences()) {
    return absl::InvalidArgumentError(absl::StrCat(
        options.job_file,
        ": training.objective is dpo, but batches from Python have no pairs; "
        "train it with `millrace run`"));
  }
  if (const absl::Status status = CheckStartingWeights(rank->job);
      !status.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.job_file, ": ", status.message()));
  }
  rank->rank = Rank{options.rank};
  rank->num_ranks = options.num_ranks;
  // To the machine a process like this one is an agent with one device.
  rank->job.resources.devices_per_agent = 1;
  ASSIGN_OR_RETURN(rank->devices,
                   FindAgentDevices(rank->job.resources,
                                    {.num_agents = options.num_local_ranks,
                                     .agent_idx = options.local_rank},
                                    &rank->host_warnings));
  if (options.num_ranks == 1) {
    rank->store = std::make_unique<MemoryRendezvousStore>();
  } else {
    rank->store =
        std::make_unique<DirectoryRendezvousStore>(options.rendezvous_folder);
  }
  RETURN_IF_ERROR(MakeCommunicators(options, *rank));
  KernelTuning tuning;
  RETURN_IF_ERROR(MakePlan(options.num_local_ranks, *rank, &tuning));
  RETURN_IF_ERROR(BuildTrainer(*rank, tuning));
  rank->layout = LayoutName(rank->plan.layout);
  std::vector<std::string> warnings = rank->host_warnings;
  warnings.insert(warnings.end(), rank->plan.warnings.begin(),
                  rank->plan.warnings.end());
  rank->warnings = absl::StrJoin(warnings, "\n");
  return rank;
}

absl::Status Step(const millrace_batch* batch, bool wait,
                  millrace_trainer& rank, millrace_step_result* out) {
  const int64_t step = rank.trainer->completed_steps() + 1;
  if (step > rank.job.training.num_steps) {
    return absl::FailedPreconditionError(absl::StrCat(
        "all ", rank.job.training.num_steps,
        " steps of the job are done; its learning rates go no further: raise "
        "training.steps"));
  }
  // A GPU reads the batch of the step before while this call goes on.
  RETURN_IF_ERROR(batch == nullptr
                      ? rank.batches->OpenOwn()
                      : rank.batches->Give(step, step - 2, *batch));
  std::optional<StepResult> result;
  ASSIGN_OR_RETURN(result, rank.trainer->RunStep({}));
  if (rank.trainer->completed_steps() < step) {
    // A GPU took the step back, since the one before it was no number. That one
    // is skipped.
    RETURN_IF_ERROR(rank.trainer->RunStep({}).status());
  }
  if (wait) {
    std::optional<StepResult> last;
    ASSIGN_OR_RETURN(last, rank.trainer->LastResult());
    if (last.has_value()) result = std::move(last);
  }
  *out = {};
  if (result.has_value()) {
    *out = {.step = result->step,
            .loss = result->loss,
            .gradient_norm = result->gradient_norm,
            .learning_rate = result->learning_rate,
            .step_time_s = result->step_time_s,
            .finite = result->finite ? 1 : 0};
  }
  return absl::OkStatus();
}

absl::Status DescribeInPlace(millrace_trainer& rank) {
  ASSIGN_OR_RETURN(rank.pieces, rank.trainer->StateInPlace());
  rank.state.clear();
  for (const StatePiece& piece : rank.pieces) {
    rank.state.push_back({.name = piece.tensor.c_str(),
                          .rows = piece.rows,
                          .cols = piece.cols,
                          .row_begin = piece.box.row_begin,
                          .row_end = piece.box.row_end,
                          .col_begin = piece.box.col_begin,
                          .col_end = piece.box.col_end,
                          .begin = piece.begin,
                          .end = piece.end,
                          .data = piece.data,
                          .is_vector = piece.is_vector ? 1 : 0});
  }
  return absl::OkStatus();
}

absl::Status CheckIsFolder(const std::string& path) {
  if (!IsObjectPath(path)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(path,
                   ": Python's trainer keeps checkpoints in folders; "
                   "s3:// paths are for jobs of millrace run"));
}

// Each rank writes its part; rank 0 commits when it has all entries, and tells
// the others how that went.
absl::Status Save(const std::string& directory, int32_t keep,
                  millrace_trainer& rank) {
  if (directory.empty() || keep < 1) {
    return absl::InvalidArgumentError(
        "a checkpoint needs a folder, and at least one is kept");
  }
  ASSIGN_OR_RETURN(const std::vector<StatePiece> state,
                   rank.trainer->ReadState());
  const int64_t step = rank.trainer->completed_steps();
  const CheckpointInfo info = {
      .step = step,
      .seed = rank.job.training.seed,
      .samples_consumed = step * rank.job.training.global_batch,
      .layout = rank.plan.layout,
      .job_yaml = JobToYaml(rank.job)};
  RETURN_IF_ERROR(CheckIsFolder(directory));
  const PrivateFiles private_files;
  const std::string key = absl::StrCat("save/", rank.num_saves++, "/");
  RETURN_IF_ERROR(
      rank.store->Set(absl::StrCat(key, ToInt(rank.rank)),
                      Encoded(WriteCheckpointPart(*PosixFileSystem(), directory,
                                                  info, rank.rank, state))));
  return FromRankZero(
             rank, key + "done",
             [&]() -> absl::StatusOr<std::string> {
               std::vector<std::string> entries;
               for (int32_t i = 0; i < rank.num_ranks; ++i) {
                 ASSIGN_OR_RETURN(
                     const std::string text,
                     rank.store->Get(absl::StrCat(key, i), kRendezvousTimeout));
                 ASSIGN_OR_RETURN(std::string entry, Decoded(text));
                 entries.push_back(std::move(entry));
               }
               RETURN_IF_ERROR(CommitCheckpoint(*PosixFileSystem(), directory,
                                                info, entries, keep));
               return std::string();
             })
      .status();
}

absl::Status Load(const std::string& path, millrace_trainer& rank) {
  RETURN_IF_ERROR(CheckIsFolder(path));
  RETURN_IF_ERROR(CheckIsOfModel(*PosixFileSystem(), path, rank.job.model));
  ASSIGN_OR_RETURN(const std::vector<StatePiece> state,
                   rank.trainer->StateToFill());
  ASSIGN_OR_RETURN(const CheckpointInfo info,
                   LoadCheckpoint(*PosixFileSystem(), path, state));
  return rank.trainer->FinishFilling(info.step);
}

}  // namespace
}  // namespace millrace

using millrace::Guarded;

int32_t millrace_train_abi_version(void) { return MILLRACE_TRAIN_ABI_VERSION; }

const char* millrace_trainer_last_error(void) {
  return millrace::last_error.c_str();
}

int32_t millrace_trainer_open(const millrace_trainer_options* options,
                              millrace_trainer** trainer) {
  return Guarded([&]() -> absl::Status {
    ASSIGN_OR_RETURN(std::unique_ptr<millrace_trainer> opened,
                     millrace::Open(*options));
    *trainer = opened.release();
    return absl::OkStatus();
  });
}

void millrace_trainer_close(millrace_trainer* trainer) { delete trainer; }

int32_t millrace_trainer_get_info(millrace_trainer* trainer,
                                  millrace_trainer_info* info) {
  return Guarded([&] {
    *info = {.global_batch = trainer->job.training.global_batch,
             .sequence_length = trainer->job.model.sequence_length,
             .vocab_size = trainer->job.model.vocab_size,
             .num_steps = trainer->job.training.num_steps,
             .completed_steps = trainer->trainer->completed_steps(),
             .arena_bytes = trainer->trainer->allocated_bytes(),
             .is_cuda = trainer->job.resources.uses_cuda() ? 1 : 0,
             .device_idx = trainer->devices.first_device_idx,
             .predicted_step_s = trainer->plan.prediction.step_time_s,
             .layout = trainer->layout.c_str(),
             .warnings = trainer->warnings.c_str()};
    return absl::OkStatus();
  });
}

int32_t millrace_trainer_step(millrace_trainer* trainer,
                              const millrace_batch* batch, int32_t wait,
                              millrace_step_result* result) {
  return Guarded(
      [&] { return millrace::Step(batch, wait != 0, *trainer, result); });
}

int32_t millrace_trainer_validate(millrace_trainer* trainer,
                                  int64_t num_batches, double* loss) {
  return Guarded([&]() -> absl::Status {
    if (num_batches < 1) {
      return absl::InvalidArgumentError("expected at least one batch");
    }
    RETURN_IF_ERROR(trainer->batches->OpenOwn());
    ASSIGN_OR_RETURN(*loss, trainer->trainer->RunValidation(num_batches));
    return absl::OkStatus();
  });
}

int32_t millrace_trainer_get_state(millrace_trainer* trainer,
                                   const millrace_state_piece** pieces,
                                   int64_t* count) {
  return Guarded([&]() -> absl::Status {
    RETURN_IF_ERROR(millrace::DescribeInPlace(*trainer));
    *pieces = trainer->state.data();
    *count = static_cast<int64_t>(trainer->state.size());
    return absl::OkStatus();
  });
}

int32_t millrace_trainer_take_changes(millrace_trainer* trainer) {
  return Guarded([&] { return trainer->trainer->TakeChanges(); });
}

int32_t millrace_trainer_save(millrace_trainer* trainer, const char* directory,
                              int32_t keep) {
  return Guarded([&] { return millrace::Save(directory, keep, *trainer); });
}

int32_t millrace_trainer_load(millrace_trainer* trainer, const char* path) {
  return Guarded([&] { return millrace::Load(path, *trainer); });
}
