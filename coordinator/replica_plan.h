// Decides how a run keeps copies of its training state in memory: how often,
// who keeps whose, and what that costs. Pure.

#ifndef MILLRACE_COORDINATOR_REPLICA_PLAN_H_
#define MILLRACE_COORDINATOR_REPLICA_PLAN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/ids.h"
#include "planner/job/job.h"
#include "planner/layout/layout.h"

namespace millrace {

struct ReplicaFacts {
  double step_s = 0;  // Predicted.
  // By rank: the host, or the agent where all agents are on one host.
  std::vector<std::string> hosts;
  bool are_agents = false;
  // Host memory that is left for a rank's copies; absent: not known.
  std::optional<int64_t> memory_bytes;
  // Seconds that a GPU stalls for each (planner/search/snapshot_plan.h).
  double stall_s = 0;
};

struct ReplicaPlan {
  int64_t interval_steps = 0;               // 0: none on a schedule.
  std::vector<std::vector<Rank>> partners;  // Of each rank.
  int64_t part_bytes = 0;                   // The largest rank's part.
  int64_t host_bytes = 0;                   // On the rank that keeps most.
  // For people: what is kept where, at what cost. Then what is amiss; empty if
  // nothing is.
  std::string description;
  std::string warning;
};

// Bytes of the largest rank's part of a checkpoint.
int64_t PartBytes(const ModelSpec& model, const Layout& layout);

// ResourceExhausted, with the cost and what to do, if the job asks for copies,
// by their interval or for two partners, for which there is no memory. If the
// job leaves it to us, there are then none and a warning says so.
absl::StatusOr<ReplicaPlan> PlanReplicas(const JobSpec& job,
                                         const Layout& layout,
                                         const ReplicaFacts& facts);

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_REPLICA_PLAN_H_
