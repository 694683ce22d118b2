// Exports of checkpoints during training (export.every of a job): a thread of
// low priority writes Hugging Face folders from checkpoints as they are
// committed. Training never waits for it, and no failure of it ends a run.

#ifndef MILLRACE_COORDINATOR_PERIODIC_EXPORT_H_
#define MILLRACE_COORDINATOR_PERIODIC_EXPORT_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "fault/file_system.h"
#include "planner/job/job.h"

namespace millrace {

// Whether a checkpoint of that step is exported: each `every` steps, and after
// the last step.
bool IsExported(const JobSpec& job, int64_t step);

// The folder of a step's export, in `directory`.
std::string ExportFolder(const std::string& directory, int64_t step);

struct ExportOutcome {
  int64_t step;
  std::string folder;
  double seconds;
  // Cancelled if it was given up for a later one, or at the end.
  absl::Status status;
  // Earlier exports that could not be removed, or else OK.
  absl::Status removal;
};

struct PeriodicExportOptions {
  std::string directory;
  int32_t keep = 0;  // Newest exports kept; 0: all.
  // Called on the thread of the exporter.
  std::function<void(const ExportOutcome&)> on_end;
};

class PeriodicExport {
 public:
  PeriodicExport(FileSystem& files, PeriodicExportOptions options);
  // Gives up what has not ended.
  ~PeriodicExport();

  // Exports the checkpoint in the step's folder `checkpoint` as soon as the one
  // before is done. One waits at most: where another waits already, that one is
  // given up.
  void Add(int64_t step, const std::string& checkpoint);

  // The earliest step whose checkpoint is still needed; none where all is done.
  std::optional<int64_t> oldest_step() const;

 private:
  struct Request {
    int64_t step;
    std::string checkpoint;
  };
  void Run();
  absl::Status Export(const Request& request, const std::string& folder);
  absl::Status RemoveOld(int64_t step);

  FileSystem& files_;
  const PeriodicExportOptions options_;
  std::atomic<bool> cancelled_ = false;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Request> waiting_;
  std::optional<int64_t> running_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_PERIODIC_EXPORT_H_
