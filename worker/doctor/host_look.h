// What a host says of itself when it is told to look: its facts, and what the
// job that was sent along would find here.

#ifndef MILLRACE_WORKER_DOCTOR_HOST_LOOK_H_
#define MILLRACE_WORKER_DOCTOR_HOST_LOOK_H_

#include "base/json.h"
#include "worker/backend/agent_devices.h"
#include "worker/doctor/host_facts.h"

namespace millrace {

// `order` may have: "several_hosts" (addresses are needed), "job" (the job
// file's text), "probe" (the name of the probes' files), "folders" (a list of
// purpose, path, and whether agent 0 wrote a probe there). What is amiss is in
// the facts.
HostFacts LookAtHost(const nlohmann::json& order, const HostShare& share);

}  // namespace millrace

#endif  // MILLRACE_WORKER_DOCTOR_HOST_LOOK_H_
