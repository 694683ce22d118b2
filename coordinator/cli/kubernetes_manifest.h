// All that Kubernetes needs to train a job: an indexed Job of one agent a pod,
// the job's text and the name by which the agents find agent 0. Agents join by
// --join, so no MPI operator is needed. docs/cluster.md shows it.

#ifndef MILLRACE_COORDINATOR_CLI_KUBERNETES_MANIFEST_H_
#define MILLRACE_COORDINATOR_CLI_KUBERNETES_MANIFEST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace millrace {

struct KubernetesOptions {
  std::string job_name;
  std::string job_text;  // The job file.
  std::string image;     // Holds millrace on its PATH.
  int32_t num_nodes = 1;
  int32_t gpus_per_node = 0;  // 0: none is asked for.
  // "CLAIM:/path": a PersistentVolumeClaim that all pods mount there. The first
  // one is the folder from which the job's relative paths count.
  std::vector<std::string> volumes;
  // A pod that is to go has so long for the job's last checkpoint.
  absl::Duration warning = absl::Minutes(5);
  bool requeue = true;  // The job goes on where it stopped.
};

// The name of the job's objects: at most 50 lower-case letters, digits and
// hyphens, as host names take them.
std::string KubernetesName(const std::string& job_name);

// InvalidArgument if an option or the job's text cannot stand in a manifest.
absl::StatusOr<std::string> WriteKubernetesManifest(
    const KubernetesOptions& options);

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_CLI_KUBERNETES_MANIFEST_H_
