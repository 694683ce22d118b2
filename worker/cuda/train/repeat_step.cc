// Steps whose loss or gradient is not a number. The device decides itself that
// such a step changes no weights, and leaves out the updates of all later ones
// until the host releases them (StepInputFeed::EnqueueRelease()). When the host
// learns of the step, the next one is under way. All ranks see the same
// scalars, so all take that one back, and their collectives stay matched.

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "worker/cuda/train/cuda_trainer.h"

namespace millrace {

absl::Status CudaTrainer::TakeBackStep() {
  RETURN_IF_ERROR(WaitForStep());
  completed_steps_ = std::exchange(untaken_step_, 0) - 1;
  return ReleaseUpdates();
}

absl::Status CudaTrainer::ReleaseUpdates() {
  paused_ = true;
  const absl::Status status = feed_->EnqueueRelease(executor_->stream());
  return status.ok() ? status
                     : Fail(status, absl::StrCat("step ", completed_steps_));
}

absl::StatusOr<CheckedStep> CudaTrainer::RepeatStep(
    const StepRequest& request) {
  RETURN_IF_ERROR(Begin());
  CHECK(untaken_step_ == 0) << "only the newest step can be run again";
  CHECK(completed_steps_ > 0);
  const int64_t step = completed_steps_;
  const std::string place = absl::StrCat("step ", step, ", run again");
  RunRecord& record = RecordOf(step);
  record.follows = false;
  record.step = step;
  if (absl::Status status = EnqueueStep(request, record, &*check_);
      !status.ok()) {
    return Fail(status, place);
  }
  if (progress_ != nullptr) progress_->BeginStep(step);
  untaken_step_ = step;
  const double step_time_s = step_time_s_;
  ASSIGN_OR_RETURN(const StepResult result, TakeResult());
  step_time_s_ = step_time_s;  // Those to come are not checked.
  if (!result.finite) RETURN_IF_ERROR(ReleaseUpdates());
  const absl::StatusOr<StepFindings> findings = check_->Read();
  if (!findings.ok()) return Fail(findings.status(), place);
  return findings->Outcome(result);
}

}  // namespace millrace
