#include "coordinator/cli/data_command.h"

#include <poll.h>

#include <cerrno>
#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "coordinator/cli/launch.h"
#include "planner/frameworks/model_folder.h"
#include "worker/agent/data_preparation.h"
#include "worker/data/open_batches.h"
#include "worker/data/show_samples.h"
#include "worker/data/tokenizer.h"
#include "worker/measure/machine.h"

namespace millrace {
namespace {

struct DataShowOptions {
  std::string job_path;
  int64_t num_samples = 3;
  int64_t step = 1;
  int64_t max_tokens = 200;
};

// Waits for the data; progress goes to standard output.
absl::StatusOr<PreparedData> Prepare(const JobSpec& job) {
  ASSIGN_OR_RETURN(const Machine machine, DescribeMachine());
  DataPreparation preparation(
      job, {.num_threads = machine.num_cores, .show_progress = true});
  absl::StatusOr<PreparedJobData> data = absl::UnavailableError("not yet");
  while (!preparation.TakeResult(&data)) {
    pollfd event{.fd = preparation.event_fd(), .events = POLLIN};
    if (poll(&event, 1, -1) < 0 && errno != EINTR) {
      return absl::InternalError("poll failed");
    }
  }
  RETURN_IF_ERROR(data.status());
  return std::move(data->training);
}

absl::Status ShowData(const DataShowOptions& options) {
  ASSIGN_OR_RETURN(const JobSpec job, LoadJobWithFolder(options.job_path));
  ASSIGN_OR_RETURN(const PreparedData data, Prepare(job));
  ASSIGN_OR_RETURN(const std::unique_ptr<BatchSource> batches,
                   OpenBatches(job, PrefixesBySource(data)));
  std::unique_ptr<Tokenizer> tokenizer;
  if (!data.tokenizer_path.empty()) {
    ASSIGN_OR_RETURN(std::string content, ReadFile(data.tokenizer_path));
    ASSIGN_OR_RETURN(tokenizer, Tokenizer::FromFiles(
                                    {.name = data.tokenizer_path,
                                     .content = std::move(content),
                                     .end_of_document = data.end_of_document},
                                    job.model.vocab_size));
  }
  ASSIGN_OR_RETURN(
      const std::vector<Sample> samples,
      ReadSamples(job, batches.get(), options.step, options.num_samples));
  for (size_t i = 0; i < samples.size(); ++i) {
    std::cout << "\nstep " << options.step << ", sample " << i + 1 << " of "
              << job.training.global_batch << ": "
              << DescribeSample(samples[i], tokenizer.get(),
                                options.max_tokens);
  }
  return absl::OkStatus();
}

int RunDataShow(const DataShowOptions& options) {
  const absl::Status status = ShowData(options);
  if (status.ok()) return 0;
  std::cerr << "millrace data show: " << status.message() << std::endl;
  return absl::IsInvalidArgument(status) || absl::IsNotFound(status) ? kBadInput
                                                                     : 1;
}

}  // namespace

void AddDataCommand(CLI::App& app, int* exit_code) {
  CLI::App* command =
      app.add_subcommand("data", "Prepare and show a job's data");
  command->require_subcommand(1);
  auto options = std::make_shared<DataShowOptions>();
  CLI::App* show = command->add_subcommand(
      "show", "Prepare a job's data and print samples as the model sees them");
  show->add_option("JOB", options->job_path, "The job file")->required();
  show->add_option("--samples", options->num_samples,
                   "Samples to print, the first ones of the step")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  show->add_option("--step", options->step, "The training step")
      ->check(CLI::Range(1, 1 << 30))
      ->capture_default_str();
  show->add_option("--tokens", options->max_tokens,
                   "Tokens to print of each document, at most")
      ->check(CLI::Range(1, 1 << 30))
      ->capture_default_str();
  show->footer("Example:\n  millrace data show job.yaml --samples 3");
  show->callback([options, exit_code] { *exit_code = RunDataShow(*options); });
}

}  // namespace millrace
