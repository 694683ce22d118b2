// Answers `millrace plan --lost-nodes`: makes plans for lost nodes.

#ifndef MILLRACE_COORDINATOR_CLI_PLAN_LOST_NODES_H_
#define MILLRACE_COORDINATOR_CLI_PLAN_LOST_NODES_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "planner/explain/explain_fleet.h"
#include "planner/explain/what_if.h"
#include "planner/search/plan.h"

namespace millrace {

// The templates of `plan`, made for `planned`, without up to `most_lost_nodes`
// of its nodes, and how long a job would wait for each. InvalidArgument for
// devices that are not in nodes alike, or are a single node.
absl::StatusOr<LostNodesAnswer> AnswerLostNodes(const PlanningCase& planned,
                                                const Plan& plan,
                                                int32_t most_lost_nodes);

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_CLI_PLAN_LOST_NODES_H_
