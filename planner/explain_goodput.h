// What a plan yields over weeks: its layout's figures put to planner/goodput.h.

#ifndef MILLRACE_PLANNER_EXPLAIN_GOODPUT_H_
#define MILLRACE_PLANNER_EXPLAIN_GOODPUT_H_

#include <optional>
#include <string>
#include <vector>

#include "planner/goodput.h"
#include "planner/search.h"
#include "planner/what_if.h"

namespace millrace {

// Nothing where the job gives neither failures nor a price. A checkpoint holds
// fp32 weights and both moments of what a rank's optimizer keeps; a node is a
// host of the profile. `throughput_by_nodes_lost` is GoodputInput's.
std::optional<GoodputReport> GoodputOf(
    const PlanningCase& planned, const Plan& plan,
    std::vector<double> throughput_by_nodes_lost = {});

// "94.1 % of the time trains: ...; a checkpoint every 120 steps ...".
std::string GoodputText(const GoodputReport& report);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_EXPLAIN_GOODPUT_H_
