#include "planner/pipeline/greedy_order.h"

#include <random>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "planner/pipeline/pass_order.h"
#include "tests/planner/pipeline/order_testing.h"

namespace millrace {
namespace {

// Both gradients of a whole backward pass as passes of their own.
PassOrder Apart(const PassOrder& order) {
  PassOrder apart(order.size());
  for (size_t s = 0; s < order.size(); ++s) {
    for (ChunkPass pass : order[s]) {
      const bool is_whole = pass.kind == ChunkPassKind::kBackward;
      if (is_whole) pass.kind = ChunkPassKind::kInputGradient;
      apart[s].push_back(pass);
      pass.kind = ChunkPassKind::kWeightGradient;
      if (is_whole) apart[s].push_back(pass);
    }
  }
  return apart;
}

// Goal: 1F1B and interleaved 1F1B are greedy under their warm-up depths, with
// weight gradients at once. Method: sweep shapes; the orders are equal, but
// that stages of deep interleaved pipelines, which wait there for a forward
// pass to keep their turn, go on with a gradient: no later and with no more
// memory.
TEST(GreedyOrderTest, ReproducesOneForwardOneBackwardAndInterleaved) {
  for (int32_t p = 1; p <= 6; ++p) {
    for (int32_t v = 1; v <= 4; ++v) {
      for (int32_t m = p; m <= 4 * p; m += p) {
        SCOPED_TRACE(absl::StrCat(p, " stages of ", v, " chunks, ", m,
                                  " micro-batches"));
        // Gradients leave a whole backward pass at its end.
        PipelineCosts costs = AlikePipeline(p, v, m);
        for (ChunkCosts& chunk : costs.chunks) {
          chunk.input_gradient_s += chunk.weight_gradient_s;
          chunk.weight_gradient_s = 0;
        }
        ListPolicy policy{.preference = Preference::kAlternate,
                          .chunks = ChunkPriority::kGroups,
                          .most_ahead = {},
                          .most_put_off = std::vector<int32_t>(p, 0)};
        for (int32_t s = 0; s < p; ++s) {
          policy.most_ahead.push_back(
              v == 1 ? p - s : 2 * (p - s - 1) + (v - 1) * p + 1);
        }
        const PassOrder order = GreedyOrder(costs, {}, 0, policy);
        const PassOrder known = Apart(
            v == 1 ? OrderOf(Schedule::kOneForwardOneBackward, costs).value()
                   : OrderOf(Schedule::kInterleaved, costs).value());
        if (v == 1 || p <= 4) {
          EXPECT_EQ(order, known);
        }
        const OrderTimes times = *TimeOrder(costs, order);
        const OrderTimes known_times = *TimeOrder(costs, known);
        EXPECT_NEAR(times.makespan_s, known_times.makespan_s, 1e-9);
        for (int32_t s = 0; s < p; ++s) {
          EXPECT_LE(times.peak_bytes[s], known_times.peak_bytes[s]);
        }
      }
    }
  }
}

// Goal: whatever the pipeline, the limits and the priorities, the order has
// every pass once, runs with the buffers it was made for and holds no more than
// allowed; nothing blocks. Method: thousands of random pipelines, chunks
// anywhere, often with the least memory that is enough.
TEST(GreedyOrderTest, NeverBlocksAndKeepsEveryLimit) {
  for (uint32_t seed = 0; seed < 4000; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937 random(seed);
    auto [costs, memory_bytes, policy] = RandomOrderingOf(random);
    if (random() % 4 == 0) memory_bytes.clear();  // No limit.
    const auto transfer_buffers = static_cast<int32_t>(random() % 3);
    const PassOrder order =
        GreedyOrder(costs, memory_bytes, transfer_buffers, policy);
    ASSERT_TRUE(CheckOrder(costs, order).ok()) << CheckOrder(costs, order);
    const absl::StatusOr<OrderTimes> times =
        TimeOrder(costs, order, transfer_buffers);
    ASSERT_TRUE(times.ok()) << times.status();
    for (size_t s = 0; s < memory_bytes.size(); ++s) {
      EXPECT_LE(times->peak_bytes[s], memory_bytes[s]) << "stage " << s;
    }
  }
}

}  // namespace
}  // namespace millrace
