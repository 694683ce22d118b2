// Teaches the hardware profile by a run's measured steps. Observations are kept
// in the run directory during training (timelines/observed.jsonl). The profile
// learns from them at its end, or later by `millrace profile --from-run`.

#ifndef MILLRACE_COORDINATOR_PROFILE_LEARNING_H_
#define MILLRACE_COORDINATOR_PROFILE_LEARNING_H_

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/planning.h"
#include "planner/cost/op_cost.h"
#include "planner/job/job.h"
#include "planner/layout/layout.h"
#include "planner/learn/learn_from_run.h"
#include "planner/program/program.h"
#include "planner/simulate/timeline.h"

namespace millrace {

class StepObserver {
 public:
  // Observes steps by the run directory's profile.yaml. The constructor does no
  // work.
  StepObserver(std::string run_directory, JobSpec job, Layout layout,
               DeviceFacts devices);
  ~StepObserver();
  StepObserver(const StepObserver&) = delete;
  StepObserver& operator=(const StepObserver&) = delete;

  // Appends a line, on a thread of its own: with many ranks it takes seconds,
  // in which the caller goes on. A step that comes meanwhile is skipped.
  // `timeline` is of all ranks, `others_share` is OthersShare() of
  // coordinator/host_load.h.
  void Observe(int64_t generation, int64_t step, Timeline timeline,
               double others_share);

  // Waits for the last one. The first error of any: FailedPrecondition if the
  // profile is of another machine or thread count than `devices`, whose steps
  // would spoil it; errors of ObserveStep, and of the disk. After one, nothing
  // more is observed.
  absl::Status Finish();

 private:
  absl::Status Open();
  absl::Status Append(int64_t generation, int64_t step,
                      const Timeline& timeline, double others_share);

  const std::string run_directory_;
  const JobSpec job_;
  const Layout layout_;
  const DeviceFacts devices_;
  std::thread thread_;
  std::atomic<bool> busy_ = false;
  // Owned by the thread while it is busy.
  std::vector<Program> programs_;
  std::optional<CostModel> cost_;
  absl::Status status_;
};

// Reads the measured steps of a run that has ended from its run directory.
// InvalidArgument if it is none, FailedPrecondition if it has not ended,
// NotFound with the reason if nothing was observed. A torn last line is passed
// over, as long as there is another; damage before it is DataLoss naming file
// and line.
//
// Steps on a busy machine teach nothing about a quiet one. Measured steps
// during which other processes used more than kMostOthersShare of a host's
// processors are left out and counted, unless `believes_busy_steps`;
// FailedPrecondition if no others are left.
inline constexpr double kMostOthersShare = 0.05;
struct EndedRun {
  JobSpec job;
  MeasuredRun measured;
  int64_t num_busy_steps = 0;
};
absl::StatusOr<EndedRun> ReadEndedRun(const std::string& run_directory,
                                      bool believes_busy_steps);

struct LearnOptions {
  std::string output;  // Empty: what the job's profile_output names.
  bool believes_busy_steps = false;
};

struct LearntFile {
  std::string path;
  int64_t num_busy_steps = 0;  // Left out.
  bool is_copy = false;        // A copy of one that must not be written.
  LearntProfile result;
};

// Teaches the profile at options.output. Profiles that come with Millrace are
// never written; learnt_profile.yaml in the run directory is, then. One process
// at a time does this, whose readers see the profile before or after.
// FailedPrecondition if the job wants none; errors of ReadEndedRun,
// LearnFromRun and of the files.
absl::StatusOr<LearntFile> LearnProfile(const std::string& run_directory,
                                        const LearnOptions& options);

// Lines for people: which file learnt what, what changed most and what was
// refused.
std::vector<std::string> DescribeLearnt(const LearntFile& taught);

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_PROFILE_LEARNING_H_
