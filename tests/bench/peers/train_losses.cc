// Trains a job on one GPU, without agent, coordinator or plan, and writes the
// loss of every step: Millrace's side of loss_curve.py, from the weights and
// batches that training_inputs writes for the peer.
//
//   train_losses JOB.yaml OUT.jsonl
//
// One object a step: {"step", "loss", "grad_norm"}. The micro-batch is the
// job's layout.micro_batch. Prints the tokens a second from step 20 on.

#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "planner/job/job_file.h"
#include "worker/cuda/train/trainer.h"
#include "worker/data/open_batches.h"
#include "worker/measure/machine.h"

namespace millrace {
namespace {

constexpr int64_t kFirstTimedStep = 20;

absl::StatusOr<Layout> LayoutOf(const JobSpec& job) {
  Layout layout = {.micro_batch = job.layout.micro_batch.value_or(1),
                   .precision = PrecisionOf(job.training.precision)};
  layout.num_microbatches =
      static_cast<int32_t>(job.training.global_batch) / layout.micro_batch;
  RETURN_IF_ERROR(ValidateLayout(job.model, layout, job.training.global_batch));
  return layout;
}

absl::Status Train(const std::string& job_path, const std::string& out_path) {
  ASSIGN_OR_RETURN(const JobSpec job, LoadJob(job_path));
  ASSIGN_OR_RETURN(const Layout layout, LayoutOf(job));
  ASSIGN_OR_RETURN(const Machine machine, DescribeMachine());
  ASSIGN_OR_RETURN(const std::unique_ptr<BatchSource> batches,
                   PrepareAndOpenBatches(job, machine.num_cores));
  ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer,
                   CreateCudaTrainer({.job = job,
                                      .layout = layout,
                                      .rank = Rank{0},
                                      .batches = batches.get()},
                                     /*device_idx=*/0, /*store=*/nullptr));
  std::ofstream out(out_path);
  auto write = [&out](const std::optional<StepResult>& result) {
    if (!result.has_value()) return;
    out << nlohmann::json{{"step", result->step},
                          {"loss", result->loss},
                          {"grad_norm", result->gradient_norm}}
        << "\n";
  };
  double start_s = 0;
  for (int64_t step = 1; step <= job.training.num_steps; ++step) {
    if (step == kFirstTimedStep) start_s = MonotonicSeconds();
    ASSIGN_OR_RETURN(const auto result, trainer->RunStep({}));
    write(result);
  }
  ASSIGN_OR_RETURN(const auto last, trainer->LastResult());
  write(last);
  const double seconds = MonotonicSeconds() - start_s;
  if (job.training.num_steps > kFirstTimedStep) {
    const int64_t tokens = (job.training.num_steps - kFirstTimedStep + 1) *
                           job.training.global_batch *
                           job.model.sequence_length;
    std::cout << job.name << ", " << LayoutToString(layout) << ": "
              << static_cast<int64_t>(static_cast<double>(tokens) / seconds)
              << " tokens/s, " << trainer->device_bytes() / (1 << 20)
              << " MiB of the device\n";
  }
  if (out.flush()) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("cannot write ", out_path, "; is the disk full?"));
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: train_losses JOB.yaml OUT.jsonl\n";
    return 2;
  }
  const absl::Status status = millrace::Train(argv[1], argv[2]);
  if (!status.ok()) std::cerr << "train_losses: " << status.message() << "\n";
  return status.ok() ? 0 : 1;
}
