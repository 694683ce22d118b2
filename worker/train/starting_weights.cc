#include "worker/train/starting_weights.h"

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "fault/file_system.h"
#include "fault/weight_folder.h"

namespace millrace {
namespace {

absl::Status CheckFolder(JobSpec& job) {
  ASSIGN_OR_RETURN(const WeightFolder weights,
                   WeightFolder::Open(*PosixFileSystem(), job.model_from));
  RETURN_IF_ERROR(weights.CheckIsOfModel(job.model));
  const std::string fingerprint = weights.Fingerprint();
  if (!job.model_fingerprint.empty() && job.model_fingerprint != fingerprint) {
    return absl::InvalidArgumentError(absl::StrCat(
        job.model_from, " holds weights of fingerprint ", fingerprint,
        ", but model.fingerprint is ", job.model_fingerprint,
        "; bring back the folder that the job was made for, or leave out "
        "model.fingerprint"));
  }
  job.model_fingerprint = fingerprint;
  return absl::OkStatus();
}

absl::StatusOr<WeightFolder> OpenCheckedFolder(const JobSpec& job) {
  ASSIGN_OR_RETURN(WeightFolder weights,
                   WeightFolder::Open(*PosixFileSystem(), job.model_from));
  if (weights.Fingerprint() != job.model_fingerprint) {
    return absl::FailedPreconditionError(absl::StrCat(
        job.model_from,
        " holds other weights than the first agent found there; all hosts "
        "must see the same folder"));
  }
  return weights;
}

absl::Status NamingTheKey(const absl::Status& status, absl::StatusCode code) {
  return status.ok() ? status
                     : absl::Status(code, absl::StrCat("model.from: ",
                                                       status.message()));
}

}  // namespace

absl::Status CheckStartingWeights(JobSpec& job) {
  if (job.model_from.empty()) return absl::OkStatus();
  return NamingTheKey(CheckFolder(job), absl::StatusCode::kInvalidArgument);
}

absl::Status LoadStartingWeights(const JobSpec& job, Trainer* trainer) {
  if (job.model_from.empty()) return absl::OkStatus();
  // Not DataLoss, which stands for a damaged checkpoint.
  constexpr absl::StatusCode kCode = absl::StatusCode::kFailedPrecondition;
  const absl::StatusOr<WeightFolder> weights = OpenCheckedFolder(job);
  RETURN_IF_ERROR(NamingTheKey(weights.status(), kCode));
  std::vector<StatePiece> state;
  ASSIGN_OR_RETURN(state, trainer->StateToFill());
  // A GPU's state is filled in host memory that holds anything; a CPU's is
  // zero where no step has run.
  if (job.resources.uses_cuda()) ZeroMoments(state);
  RETURN_IF_ERROR(NamingTheKey(weights->Load(state), kCode));
  return trainer->FinishFilling(0);
}

}  // namespace millrace
