#include "worker/agent/data_preparation.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "worker/agent/data_offer.h"
#include "worker/data/document_length.h"
#include "worker/data/open_batches.h"

namespace millrace {
namespace {

// Between lines of progress where the line cannot be drawn over.
constexpr absl::Duration kLineInterval = absl::Seconds(15);

// The same rule as the coordinator's progress line, which is beyond this
// folder's reach.
bool ProgressIsDrawn() {
  const char* wish = std::getenv("MILLRACE_PROGRESS");
  if (wish != nullptr && *wish != '\0') return std::strcmp(wish, "0") != 0;
  // Open MPI gives its processes a terminal even where its own output is not.
  if (std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr) return false;
  return isatty(STDOUT_FILENO) != 0;
}

// Data that cannot be read ends the job when the workers read it.
int64_t DocumentLengthOf(const JobSpec& job, const PreparedData& data) {
  if (job.data.synthetic || job.data.document_length > 0) return 0;
  const auto batches = OpenBatches(job, PrefixesBySource(data));
  return batches.ok() ? MeanDocumentLength(job, **batches).value_or(0) : 0;
}

}  // namespace

DataPreparation::DataPreparation(const JobSpec& job,
                                 const DataPreparationOptions& options)
    : options_(options),
      interactive_(ProgressIsDrawn()),
      event_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  CHECK(event_fd_ >= 0);
  thread_ = std::thread([this, job] { Run(job); });
}

absl::StatusOr<PreparedJobData> DataPreparation::Prepare(const JobSpec& job) {
  absl::StatusOr<PreparedData> training = PrepareData(
      {.data = job.data,
       .vocab_size = job.model.vocab_size,
       .num_threads = options_.num_threads,
       .progress = [this](const PrepareProgress& step) { Show(step); }});
  if (line_open_) std::cout << std::endl;
  RETURN_IF_ERROR(training.status());
  if (options_.show_progress) Describe(job, *training);
  PreparedJobData data;
  if (job.evaluation.interval_steps > 0) {
    ASSIGN_OR_RETURN(data.evaluation,
                     PrepareEvaluation(job, *training, options_.num_threads));
  }
  data.training = *std::move(training);
  if (options_.counts_documents) {
    data.document_length = DocumentLengthOf(job, data.training);
  }
  if (options_.counts_documents && data.document_length > 0) {
    std::cout << "data: sequences of " << job.model.sequence_length
              << " tokens hold documents of " << data.document_length
              << ", averaged over tokens (data.document_length)" << std::endl;
  }
  if (options_.offers) {
    ASSIGN_OR_RETURN(data.offer, OfferOf(data));
  }
  return data;
}

void DataPreparation::Run(const JobSpec& job) {
  absl::StatusOr<PreparedJobData> data =
      options_.fetch ? options_.fetch() : Prepare(job);
  if (options_.fetch && options_.show_progress && data.ok()) {
    std::cout
        << absl::StreamFormat(
               "data: %s tokens in %s documents (data.from %s)",
               FormatCount(static_cast<double>(data->training.num_tokens)),
               FormatCount(static_cast<double>(data->training.num_documents)),
               job.data.from)
        << std::endl;
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    result_ = std::move(data);
  }
  ended_ = true;
  const uint64_t one = 1;
  const ssize_t written = write(event_fd_, &one, sizeof(one));
  static_cast<void>(written);  // Cannot overflow: it is written once.
}

void DataPreparation::Describe(const JobSpec& job, const PreparedData& data) {
  if (job.data.synthetic) {
    std::cout << "data: random tokens (data.synthetic)" << std::endl;
    return;
  }
  std::cout << absl::StreamFormat(
                   "data: %s tokens in %s documents%s",
                   FormatCount(static_cast<double>(data.num_tokens)),
                   FormatCount(static_cast<double>(data.num_documents)),
                   data.from_cache ? " (cached)" : "")
            << std::endl;
  for (const std::string& unmatched : data.unmatched) {
    std::cout << "data: warning: " << unmatched << std::endl;
  }
  for (const std::string& left_out :
       {DescribeSkips(data.skips), DescribeBroken(data.broken),
        data.num_empty == 0
            ? ""
            : absl::StrCat(data.num_empty, " empty records left out")}) {
    if (!left_out.empty()) std::cout << "data: " << left_out << std::endl;
  }
  if (job.data.sources.empty()) return;
  // Sources that cannot be opened end the job when the workers open them.
  const absl::StatusOr<std::string> epochs = DescribeEpochs(job, data);
  if (!epochs.ok()) return;
  for (const absl::string_view line :
       absl::StrSplit(*epochs, '\n', absl::SkipEmpty())) {
    std::cout << "data:   " << line << std::endl;
  }
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
  if (new_stage) {
    stage_began_ = now;
    stage_began_bytes_ = progress.done_bytes;
  }
  const absl::Duration interval =
      interactive_ ? absl::Milliseconds(200) : kLineInterval;
  if (!new_stage && now - last_shown_ < interval) return;
  last_shown_ = now;
  last_stage_ = progress.stage;
  std::string line = absl::StrCat("data: ", PrepareStageName(progress.stage));
  if (progress.total_bytes > 0 && progress.done_bytes > 0 &&
      (interactive_ || !new_stage)) {
    absl::StrAppend(&line, " ", FormatBytes(progress.done_bytes), " of ",
                    FormatBytes(progress.total_bytes));
    const double rate =
        static_cast<double>(progress.done_bytes - stage_began_bytes_) /
        absl::ToDoubleSeconds(now - stage_began_);
    if (rate > 0 && now - stage_began_ > absl::Seconds(2)) {
      absl::StrAppend(&line, ", ", FormatBytes(static_cast<int64_t>(rate)),
                      "/s, ",
                      FormatSeconds(static_cast<double>(progress.total_bytes -
                                                        progress.done_bytes) /
                                    rate),
                      " left");
    }
  }
  if (interactive_) {
    std::cout << "\r" << line << "\x1b[K" << std::flush;
    line_open_ = true;
  } else {
    std::cout << line << std::endl;
  }
}

}  // namespace millrace
