// Pipelines for the tests of list scheduling.

#ifndef MILLRACE_TESTS_PLANNER_PIPELINE_ORDER_TESTING_H_
#define MILLRACE_TESTS_PLANNER_PIPELINE_ORDER_TESTING_H_

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "planner/pipeline/greedy_order.h"
#include "planner/pipeline/list_schedule.h"
#include "planner/pipeline/passes.h"

namespace millrace {

// kTurns: chunk c on stage c modulo the stages; kV: down the stages and up
// again, two chunks each.
enum class Placement { kTurns, kV };

// Stages whose passes of all their chunks take a second each and hold 120
// bytes.
inline PipelineCosts AlikePipeline(int32_t num_stages, int32_t num_chunks_each,
                                   int32_t num_microbatches,
                                   Placement placement = Placement::kTurns) {
  PipelineCosts costs;
  costs.num_stages = num_stages;
  costs.num_microbatches = num_microbatches;
  const double each_s = 1.0 / num_chunks_each;
  for (int32_t c = 0; c < num_stages * num_chunks_each; ++c) {
    const bool goes_up = placement == Placement::kV && c >= num_stages;
    costs.stage_of_chunk.push_back(goes_up ? 2 * num_stages - 1 - c
                                           : c % num_stages);
    costs.chunks.push_back(
        {each_s, each_s, each_s, 120 / num_chunks_each, 120 / num_chunks_each});
  }
  return costs;
}

// Uneven in all there is; chunks anywhere if `num_chunks_each` > 1.
inline PipelineCosts RandomPipeline(std::mt19937& random,
                                    int32_t num_chunks_each,
                                    int32_t most_stages,
                                    int32_t most_microbatches) {
  const auto pick = [&](int32_t n) {
    return static_cast<int32_t>(random() % static_cast<uint32_t>(n));
  };
  const auto seconds = [&] { return 0.05 * (1 + pick(40)); };
  PipelineCosts costs;
  costs.num_stages = 1 + pick(most_stages);
  costs.num_microbatches = 1 + pick(most_microbatches);
  costs.transfer_s = pick(2) == 0 ? 0 : seconds() / 4;
  const bool has_cheap_weights = pick(8) == 0;
  for (int32_t c = 0; c < costs.num_stages * num_chunks_each; ++c) {
    costs.stage_of_chunk.push_back(
        num_chunks_each == 1 ? c : pick(costs.num_stages));
    costs.chunks.push_back({seconds(), seconds(),
                            has_cheap_weights ? 0 : seconds(), 20 + pick(200),
                            pick(250)});
  }
  return costs;
}

// A pipeline of up to 6 stages, up to 3 chunks a stage and 9 micro-batches, and
// how GreedyOrder() may order it.
struct RandomOrdering {
  PipelineCosts costs;
  std::vector<int64_t> memory_bytes;  // By stage; often the least there is.
  ListPolicy policy;
};
inline RandomOrdering RandomOrderingOf(std::mt19937& random) {
  const auto pick = [&](uint32_t n) {
    return static_cast<int32_t>(random() % n);
  };
  RandomOrdering ordering{
      .costs = RandomPipeline(random, 1 + pick(3), 6, 9),
      .memory_bytes = {},
      .policy = {.preference = static_cast<Preference>(pick(3)),
                 .chunks = static_cast<ChunkPriority>(pick(3)),
                 .most_ahead = {},
                 .most_put_off = {},
                 .overrun = pick(3) / 2.0,
                 .patience = pick(3) / 2.0}};
  const PipelineCosts& costs = ordering.costs;
  const int32_t slack = pick(3) * 150;
  for (int32_t s = 0; s < costs.num_stages; ++s) {
    const auto num_chunks = static_cast<int32_t>(std::count(
        costs.stage_of_chunk.begin(), costs.stage_of_chunk.end(), s));
    ordering.memory_bytes.push_back(LeastBytes(costs, s) + slack);
    ordering.policy.most_ahead.push_back(std::max(1, num_chunks) + pick(6));
    ordering.policy.most_put_off.push_back(pick(4));
  }
  return ordering;
}

}  // namespace millrace

#endif  // MILLRACE_TESTS_PLANNER_PIPELINE_ORDER_TESTING_H_
