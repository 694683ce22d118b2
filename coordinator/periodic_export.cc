#include "coordinator/periodic_export.h"

#include <sys/resource.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "coordinator/model_files.h"
#include "fault/checkpoint_files.h"
#include "fault/weight_export.h"
#include "planner/frameworks/model_folder.h"

namespace millrace {
namespace {

constexpr char kExportPrefix[] = "step-";
constexpr size_t kExportDigits = 8;
// The lowest priority: training takes the processors first.
constexpr int kLowPriority = 19;

std::optional<int64_t> StepOfExport(absl::string_view name) {
  int64_t step = 0;
  if (!absl::ConsumePrefix(&name, kExportPrefix) ||
      name.size() < kExportDigits || !absl::SimpleAtoi(name, &step)) {
    return std::nullopt;
  }
  return step;
}

}  // namespace

bool IsExported(const JobSpec& job, int64_t step) {
  const int64_t every = job.exports.every;
  return every > 0 && (step % every == 0 || step == job.training.num_steps);
}

std::string ExportFolder(const std::string& directory, int64_t step) {
  return JoinPath(directory, absl::StrFormat("%s%08d", kExportPrefix, step));
}

PeriodicExport::PeriodicExport(FileSystem& files, PeriodicExportOptions options)
    : files_(files), options_(std::move(options)) {
  thread_ = std::thread([this] { Run(); });
}

PeriodicExport::~PeriodicExport() {
  cancelled_ = true;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void PeriodicExport::Add(int64_t step, const std::string& checkpoint) {
  std::optional<Request> given_up = Request{step, checkpoint};
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::swap(waiting_, given_up);
  }
  changed_.notify_all();
  if (!given_up.has_value()) return;
  options_.on_end({.step = given_up->step,
                   .folder = ExportFolder(options_.directory, given_up->step),
                   .seconds = 0,
                   .status = absl::CancelledError(absl::StrCat(
                       "given up for step ", step,
                       ", since exports take longer than the steps between "
                       "them; raise export.every"))});
}

std::optional<int64_t> PeriodicExport::oldest_step() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (running_.has_value()) return running_;
  if (waiting_.has_value()) return waiting_->step;
  return std::nullopt;
}

void PeriodicExport::Run() {
  // On Linux the priority is that of this thread and of those that it starts.
  setpriority(PRIO_PROCESS, 0, kLowPriority);
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ends_ || waiting_.has_value(); });
    if (ends_) return;
    const Request request = *std::move(waiting_);
    waiting_.reset();
    running_ = request.step;
    lock.unlock();
    const double began_s = MonotonicSeconds();
    const std::string folder = ExportFolder(options_.directory, request.step);
    ExportOutcome outcome = {.step = request.step, .folder = folder};
    outcome.status = Export(request, folder);
    if (outcome.status.ok()) outcome.removal = RemoveOld(request.step);
    outcome.seconds = MonotonicSeconds() - began_s;
    lock.lock();
    running_.reset();
    lock.unlock();
    options_.on_end(outcome);
    lock.lock();
  }
}

absl::Status PeriodicExport::Export(const Request& request,
                                    const std::string& folder) {
  WeightExport what = {.checkpoint = request.checkpoint,
                       .cancelled = &cancelled_};
  ASSIGN_OR_RETURN(what.other_files,
                   FilesBesideWeights(files_, request.checkpoint, what.type));
  ASSIGN_OR_RETURN(
      what.naming,
      NamingOfConfig(what.other_files.at(kModelConfig), kModelConfig));
  RETURN_IF_ERROR(files_.MakeDirectories(options_.directory));
  // An export that a crash interrupted.
  RETURN_IF_ERROR(files_.Remove(absl::StrCat(folder, ".partial")));
  return ExportWeightFolder(files_, what, folder);
}

absl::Status PeriodicExport::RemoveOld(int64_t step) {
  if (options_.keep <= 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::vector<std::string> names,
                   files_.List(options_.directory));
  std::vector<int64_t> steps;
  for (const std::string& name : names) {
    const std::optional<int64_t> found = StepOfExport(name);
    // Later ones belong to a history that was rolled back, or to another run.
    if (found.has_value() && *found <= step &&
        files_.Exists(
            JoinPath(JoinPath(options_.directory, name), kModelConfig))) {
      steps.push_back(*found);
    }
  }
  std::sort(steps.rbegin(), steps.rend());
  for (size_t i = options_.keep; i < steps.size(); ++i) {
    RETURN_IF_ERROR(files_.Remove(ExportFolder(options_.directory, steps[i])));
  }
  return files_.SyncDirectory(options_.directory);
}

}  // namespace millrace
