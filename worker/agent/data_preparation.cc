#include "worker/agent/data_preparation.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/units.h"

namespace millrace {
namespace {

// The same rule as the coordinator's progress line, which is beyond this
// folder's reach.
bool ProgressIsDrawn() {
  const char* wish = std::getenv("MILLRACE_PROGRESS");
  if (wish != nullptr && *wish != '\0') return std::strcmp(wish, "0") != 0;
  // Open MPI gives its processes a terminal even where its own output is not.
  if (std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr) return false;
  return isatty(STDOUT_FILENO) != 0;
}

}  // namespace

DataPreparation::DataPreparation(const JobSpec& job,
                                 const DataPreparationOptions& options)
    : options_(options),
      interactive_(ProgressIsDrawn()),
      event_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  CHECK(event_fd_ >= 0);
  thread_ = std::thread([this, job] {
    absl::StatusOr<PreparedData> result = PrepareData(
        {.data = job.data,
         .vocab_size = job.model.vocab_size,
         .num_threads = options_.num_threads,
         .progress = [this](const PrepareProgress& step) { Show(step); }});
    if (line_open_) std::cout << std::endl;
    if (result.ok() && options_.show_progress && job.data.synthetic) {
      std::cout << "data: random tokens (data.synthetic)" << std::endl;
    } else if (result.ok() && options_.show_progress) {
      std::cout << absl::StreamFormat(
                       "data: %s tokens in %s documents%s",
                       FormatCount(static_cast<double>(result->num_tokens)),
                       FormatCount(static_cast<double>(result->num_documents)),
                       result->from_cache ? " (cached)" : "")
                << std::endl;
      const std::string unmatched =
          DescribeUnmatched(result->unmatched, "data.text");
      if (!unmatched.empty()) {
        std::cout << "data: warning: " << unmatched << std::endl;
      }
      const std::string skips = DescribeSkips(result->skips);
      if (!skips.empty()) std::cout << "data: " << skips << std::endl;
    }
    const absl::StatusOr<std::vector<EvaluationSet>> evaluation =
        result.ok() && job.evaluation.interval_steps > 0
            ? PrepareEvaluation(job, *result, options_.num_threads)
            : std::vector<EvaluationSet>();
    absl::StatusOr<PreparedJobData> all = absl::UnavailableError("not yet");
    if (!result.ok()) {
      all = result.status();
    } else if (!evaluation.ok()) {
      all = evaluation.status();
    } else {
      all = PreparedJobData{.training = *std::move(result),
                            .evaluation = *evaluation};
    }
    {
      std::lock_guard<std::mutex> lock(mutex_);
      result_ = std::move(all);
    }
    ended_ = true;
    const uint64_t one = 1;
    const ssize_t written = write(event_fd_, &one, sizeof(one));
    static_cast<void>(written);  // Cannot overflow: it is written once.
  });
}

DataPreparation::~DataPreparation() {
  thread_.join();
  close(event_fd_);
}

bool DataPreparation::TakeResult(absl::StatusOr<PreparedJobData>* result) {
  uint64_t count = 0;
  if (read(event_fd_, &count, sizeof(count)) != sizeof(count)) return false;
  std::lock_guard<std::mutex> lock(mutex_);
  *result = std::move(result_);
  return true;
}

void DataPreparation::Show(const PrepareProgress& progress) {
  if (!options_.show_progress) return;
  const absl::Time now = MonotonicNow();
  const bool new_stage = progress.stage != last_stage_;
  if (!new_stage &&
      (!interactive_ || now - last_shown_ < absl::Milliseconds(200))) {
    return;
  }
  last_shown_ = now;
  last_stage_ = progress.stage;
  std::string line = absl::StrCat("data: ", PrepareStageName(progress.stage));
  if (interactive_ && progress.total_bytes > 0 && progress.done_bytes > 0) {
    absl::StrAppend(&line, " ", FormatBytes(progress.done_bytes), " of ",
                    FormatBytes(progress.total_bytes));
  }
  if (interactive_) {
    std::cout << "\r" << line << "\x1b[K" << std::flush;
    line_open_ = true;
  } else {
    std::cout << line << std::endl;
  }
}

}  // namespace millrace
