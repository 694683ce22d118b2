// Turns slow machines, slow ranks and slow links into slow-down factors for
// passes, transfers and collectives. Internal to
// planner/simulate/simulate_passes.cc.

#ifndef MILLRACE_PLANNER_SIMULATE_PASS_DISTURBANCE_H_
#define MILLRACE_PLANNER_SIMULATE_PASS_DISTURBANCE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "planner/simulate/run_pass_ops.h"
#include "planner/simulate/simulate_passes.h"

namespace millrace {

// All but the seed of the noise. Draws the slow machines, which
// *num_slow_machines counts. InvalidArgument for ranks, machines and factors
// that are none.
absl::StatusOr<Disturbance> DisturbanceOf(const PassStep& step,
                                          const PassOptions& options,
                                          int32_t* num_slow_machines);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_SIMULATE_PASS_DISTURBANCE_H_
