// Teaches the profile by measured steps; see job_runner.h.

#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/job_runner.h"

namespace millrace {

void JobRunner::ObserveStep(int64_t generation, int64_t step,
                            const Timeline& timeline, double others_share) {
  if (job_.profile_output == "none") return;
  // Steps of a later plan, made without some of the hosts, teach nothing.
  if (observed_layout_.has_value() && *observed_layout_ != plan_->layout) {
    return;
  }
  observed_layout_ = plan_->layout;
  if (!observer_.has_value()) {
    observer_.emplace(options_.run_directory, job_, plan_->layout, Devices());
  }
  observer_->Observe(generation, step, timeline, others_share);
}

void JobRunner::LearnProfile(const EndJob& action) {
  const bool ended_well = action.verdict == Verdict::kFinished ||
                          action.verdict == Verdict::kStopped;
  if (job_.profile_output == "none" || !ended_well) return;
  const absl::Status observed =
      observer_.has_value() ? observer_->Finish() : absl::OkStatus();
  const absl::StatusOr<LearntFile> taught =
      observed.ok() ? millrace::LearnProfile(options_.run_directory, {})
                    : absl::StatusOr<LearntFile>(observed);
  if (!taught.ok()) {
    progress_->Line(
        absl::StrCat("profile: nothing learnt: ", taught.status().message()));
    return;
  }
  output_->Event({.event = "profile_taught", .detail = taught->path});
  for (const std::string& line : DescribeLearnt(*taught)) {
    progress_->Line(line);
  }
}

}  // namespace millrace
