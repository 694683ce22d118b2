// Steps at the level of passes that tests of their simulation share.

#ifndef MILLRACE_TESTS_PLANNER_SIMULATE_PASS_TESTING_H_
#define MILLRACE_TESTS_PLANNER_SIMULATE_PASS_TESTING_H_

#include <cstdint>

#include "gtest/gtest.h"
#include "planner/pipeline/pass_order.h"
#include "planner/simulate/simulate_passes.h"

namespace millrace {

struct Shape {
  int32_t stages;
  int32_t turns = 1;  // Chunks a stage.
  int32_t microbatches;
};

inline PipelineCosts Costs(const Shape& shape, const ChunkCosts& chunk) {
  PipelineCosts costs{.num_stages = shape.stages,
                      .num_microbatches = shape.microbatches};
  for (int32_t c = 0; c < shape.stages * shape.turns; ++c) {
    costs.stage_of_chunk.push_back(c % shape.stages);
    costs.chunks.push_back(chunk);
  }
  return costs;
}

inline PassStep StepOf(const PipelineCosts& costs, Schedule schedule,
                       StepModel::StepEnds ends = {}) {
  return {.costs = costs, .order = *OrderOf(schedule, costs), .ends = {ends}};
}

inline double StepTime(const PassStep& step, const PassOptions& options = {}) {
  const absl::StatusOr<PassSimulation> simulation =
      SimulatePasses(step, options);
  EXPECT_TRUE(simulation.ok()) << simulation.status();
  return simulation.ok() ? simulation->step_time_s : 0;
}

// Four stages of two chunks each, with all that a step has.
inline PassStep LargeStep(int32_t replicas) {
  PipelineCosts costs = Costs({.stages = 4, .turns = 2, .microbatches = 16},
                              {.forward_s = 1e-2,
                               .input_gradient_s = 1.1e-2,
                               .weight_gradient_s = 0.9e-2});
  costs.transfer_s = 1e-3;
  PassStep step = StepOf(costs, Schedule::kInterleaved,
                         {.gradient_reduction_s = 0.05,
                          .parameter_gather_s = 0.02,
                          .optimizer_s = 0.01});
  step.num_buckets = 4;
  step.num_replicas = replicas;
  step.ranks_per_pass = 4;
  return step;
}

}  // namespace millrace

#endif  // MILLRACE_TESTS_PLANNER_SIMULATE_PASS_TESTING_H_
