#include "coordinator/cli/compare_command.h"

#include <cstdint>
#include <iostream>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "coordinator/objects/stored_files.h"
#include "fault/checkpoint.h"
#include "planner/frameworks/model_folder.h"
#include "planner/lower/lower.h"
#include "worker/backend/cuda_backend.h"
#include "worker/compare/compare.h"
#include "worker/cpu/stepper.h"
#include "worker/data/open_batches.h"
#include "worker/measure/machine.h"

namespace millrace {
namespace {

struct CompareOptions {
  std::string job_path;
  std::string precision;  // Empty: the job's.
  std::string recompute;  // Empty: the job's, or none.
  std::string mode = "isolated";
  std::string checkpoint;   // Empty: weights from the job's seed.
  int64_t step = 0;         // 0: the first, or that after the checkpoint.
  int32_t micro_batch = 0;  // 0: the job's, or 1.
  int32_t micro_batches = 2;
  int32_t device = 0;
  bool json = false;
};

// One rank, with a batch that a CPU can wait for.
Layout LayoutOf(const CompareOptions& options, const JobSpec& job) {
  const std::string precision =
      options.precision.empty() ? job.training.precision : options.precision;
  const std::string of_job =
      job.layout.recompute == "auto" ? "none" : job.layout.recompute;
  Layout again;  // Stages may differ; this one recomputes what any does.
  SetRecompute(options.recompute.empty() ? of_job : options.recompute, &again);
  return {.micro_batch = options.micro_batch > 0
                             ? options.micro_batch
                             : job.layout.micro_batch.value_or(1),
          .num_microbatches = options.micro_batches,
          .precision = PrecisionOf(precision, Backend::kCuda),
          .moments = MomentFormatOf(job.training.optimizer.moments),
          .objective = job.training.minimizes(),
          .gemm_format = GemmFormatOf(precision),
          .recompute = again.recompute};
}

absl::StatusOr<Comparison> Compare(const CompareOptions& options) {
  // First what fails at once on a machine without GPUs.
  ASSIGN_OR_RETURN(JobSpec job, LoadJobWithFolder(options.job_path));
  ASSIGN_OR_RETURN(CudaBackend * gpus, LoadCudaBackend());
  ASSIGN_OR_RETURN(const auto devices, gpus->ListDevices());
  if (options.device >= static_cast<int32_t>(devices.size())) {
    return absl::InvalidArgumentError(absl::StrCat("--device ", options.device,
                                                   ": this machine has GPUs 0 ",
                                                   "to ", devices.size() - 1));
  }
  Layout layout = LayoutOf(options, job);
  job.training.global_batch = layout.global_batch();
  RETURN_IF_ERROR(ValidateLayout(job.model, layout, job.training.global_batch));
  ASSIGN_OR_RETURN(const Program gpu_program,
                   BuildTrainingProgram(job.model, layout, /*stage=*/0));
  layout.precision = Precision::kFloat32;
  ASSIGN_OR_RETURN(const Program cpu_program,
                   BuildTrainingProgram(job.model, layout, /*stage=*/0));

  ASSIGN_OR_RETURN(const Machine machine, DescribeMachine());
  const int32_t num_threads = machine.num_cores;
  ASSIGN_OR_RETURN(const std::unique_ptr<BatchSource> batches,
                   PrepareAndOpenBatches(job, num_threads));
  int64_t step = options.step;
  if (step == 0) {
    step = 1;
    if (!options.checkpoint.empty()) {
      ASSIGN_OR_RETURN(
          const CheckpointInfo info,
          ReadCheckpointInfo(*StoredFilesOf({}), options.checkpoint));
      step = info.step + 1;
    }
  }
  ASSIGN_OR_RETURN(const auto cpu,
                   CpuStepper::Create({.program = &cpu_program,
                                       .job = job,
                                       .step = step,
                                       .num_threads = num_threads,
                                       .batches = batches.get()}));
  if (!options.checkpoint.empty()) {
    RETURN_IF_ERROR(LoadCheckpoint(*StoredFilesOf({}), options.checkpoint,
                                   cpu->StatePieces())
                        .status());
  }
  ASSIGN_OR_RETURN(const auto gpu,
                   gpus->CreateStepper({.program = &gpu_program,
                                        .job = job,
                                        .step = step,
                                        .batches = batches.get()},
                                       options.device));
  return CompareSteps(*cpu, *gpu,
                      options.mode == "isolated" ? CompareMode::kIsolated
                                                 : CompareMode::kChained);
}

int RunCompare(const CompareOptions& options) {
  const absl::StatusOr<Comparison> comparison = Compare(options);
  if (!comparison.ok()) {
    std::cerr << "millrace compare: " << comparison.status().message()
              << std::endl;
    return absl::IsInvalidArgument(comparison.status()) ||
                   absl::IsNotFound(comparison.status())
               ? 2
               : 1;
  }
  std::cout << (options.json ? ComparisonToJson(*comparison)
                             : ComparisonToText(*comparison));
  return comparison->FirstDifference().has_value() ? 1 : 0;
}

}  // namespace

void AddCompareCommand(CLI::App& app, int* exit_code) {
  auto options = std::make_shared<CompareOptions>();
  CLI::App* command = app.add_subcommand(
      "compare", "Run one training step on CPU and GPU and compare every op");
  command->add_option("JOB", options->job_path, "The job file")->required();
  command
      ->add_option("--precision", options->precision,
                   "Of the GPU's step (default: the job's); the CPU's is fp32")
      ->check(CLI::IsMember({"fp32", "bf16", "fp8", "fp8_blockwise"}));
  command
      ->add_option("--recompute", options->recompute,
                   "What the backward pass computes again, as layout.recompute "
                   "of a job (default: the job's, else none)")
      ->check([](const std::string& key) {
        return std::string(CheckRecomputeKey(key).message());
      });
  command
      ->add_option("--mode", options->mode,
                   "isolated (default): each op on the GPU gets the CPU's "
                   "operands, so that the one that differs is to blame; "
                   "chained: each goes on with its own results")
      ->check(CLI::IsMember({"isolated", "chained"}));
  command->add_option("--checkpoint", options->checkpoint,
                      "Weights and moments of this checkpoint (default: "
                      "initial weights from the job's seed)");
  command
      ->add_option("--step", options->step,
                   "Whose batch and learning rate (default: the first, or the "
                   "one after the checkpoint)")
      ->check(CLI::PositiveNumber);
  command
      ->add_option("--micro-batch", options->micro_batch,
                   "Sequences of a micro-batch (default: layout.micro_batch of "
                   "the job, else 1)")
      ->check(CLI::PositiveNumber);
  command
      ->add_option("--micro-batches", options->micro_batches,
                   "Micro-batches of the step (default: 2)")
      ->check(CLI::PositiveNumber);
  command->add_option("--device", options->device, "Which GPU (default: 0)")
      ->check(CLI::NonNegativeNumber);
  command->add_flag("--json", options->json,
                    "Print one JSON object with every output");
  command->footer(
      "Programs of one rank are compared: without tensor, pipeline and data "
      "axes, whose ops need peers.\n"
      "Exit code 1 if an op is beyond its tolerance.\n"
      "Example: millrace compare configs/gpt2-125m.yaml --precision bf16");
  command->callback(
      [options, exit_code] { *exit_code = RunCompare(*options); });
}

}  // namespace millrace
