// One host's part of an examination: looks, tries and measures as it is told,
// until it is told to end.

#ifndef MILLRACE_WORKER_DOCTOR_EXAMINEE_H_
#define MILLRACE_WORKER_DOCTOR_EXAMINEE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "planner/job/job.h"
#include "worker/backend/agent_devices.h"

namespace millrace {

struct ExamineeOptions {
  int32_t agent_idx = 0;  // -1: the examination gives one.
  std::string host;
  HostShare share;
  std::string address;  // Where the examination listens.
  std::string secret;
  // This host's copy of the job, if the command names one: as in TakeJob().
  absl::StatusOr<JobSpec> own_copy = absl::NotFoundError("no copy");
  std::string mpi_library;  // Empty: MPI did not start this.
};

// Returns the exit code that the examination gave. Unavailable if it cannot be
// reached, or was lost.
absl::StatusOr<int> RunExaminee(const ExamineeOptions& options);

}  // namespace millrace

#endif  // MILLRACE_WORKER_DOCTOR_EXAMINEE_H_
