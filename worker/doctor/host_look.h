// A host's report when it is told to look: its facts, and what the
// job that was sent along would find here.

#ifndef MILLRACE_WORKER_DOCTOR_HOST_LOOK_H_
#define MILLRACE_WORKER_DOCTOR_HOST_LOOK_H_

#include "absl/status/statusor.h"
#include "base/json.h"
#include "planner/job/job.h"
#include "worker/backend/agent_devices.h"
#include "worker/doctor/host_facts.h"

namespace millrace {

// `order` may have: "several_hosts" (addresses are needed), "job" (the job
// file's text), "probe" (the name of the probes' files), "folders" (a list of
// purpose, path, and whether agent 0 wrote a probe there), "bucket" (the s3://
// path where the job keeps checkpoints). What is amiss is in
// the facts. `own_copy` as in TakeJob() of host_job.h.
HostFacts LookAtHost(const nlohmann::json& order, const HostShare& share,
                     const absl::StatusOr<JobSpec>& own_copy);

}  // namespace millrace

#endif  // MILLRACE_WORKER_DOCTOR_HOST_LOOK_H_
