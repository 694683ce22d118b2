#include "tests/e2e/numbers_of_one_rank.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <vector>

#include "gtest/gtest.h"
#include "tests/e2e/equivalence_job.h"

namespace millrace {
namespace {

// Beside one rank with micro-batches of two: other micro-batches, stages of a
// pipeline, ZeRO's slices, tensor shards, all of them at once.
std::vector<Layout> CutLayouts() {
  std::vector<Layout> layouts = {
      {.micro_batch = 1, .num_microbatches = 8},
      {.micro_batch = 4, .num_microbatches = 2},
      {.micro_batch = 8, .num_microbatches = 1},
      {.pipeline = 2, .micro_batch = 2, .num_microbatches = 4},
      {.tensor = 2, .micro_batch = 2, .num_microbatches = 4},
      {.pipeline = 2,
       .data = 2,
       .tensor = 2,
       .micro_batch = 2,
       .num_microbatches = 2},
      {.data = 2,
       .tensor = 2,
       .micro_batch = 2,
       .num_microbatches = 2,
       .zero = 3,
       .recompute = Recompute::kFull}};
  layouts.push_back(layouts[3]);
  layouts.back().schedule = Schedule::kZeroBubble;
  for (const int zero : {0, 1, 2, 3}) {
    layouts.push_back(
        {.data = 2, .micro_batch = 2, .num_microbatches = 2, .zero = zero});
  }
  return layouts;
}

}  // namespace

void ExpectNumbersOfOneRank(const JobSpec& job, GemmFormat format,
                            int64_t num_steps,
                            const NumberDifferences& allowed) {
  const auto run = [&](Layout layout) {
    layout.gemm_format = format;
    return RunJob(job, layout, num_steps);
  };
  const JobResult alone = run({.micro_batch = 2, .num_microbatches = 4});
  ASSERT_TRUE(alone.status.ok()) << alone.status;
  for (const Layout& layout : CutLayouts()) {
    SCOPED_TRACE(LayoutToString(layout));
    const JobResult result = run(layout);
    ASSERT_TRUE(result.status.ok()) << result.status;
    ASSERT_EQ(result.losses.size(), alone.losses.size());
    NumberDifferences worst;
    for (size_t i = 0; i < alone.losses.size(); ++i) {
      double& loss = i == 0 ? worst.first_loss : worst.loss;
      double& norm = i == 0 ? worst.first_norm : worst.norm;
      // Written so that what is not a number is not within.
      const double loss_ratio = result.losses[i] / alone.losses[i];
      const double norm_ratio =
          result.gradient_norms[i] / alone.gradient_norms[i];
      ASSERT_TRUE(std::isfinite(loss_ratio) && std::isfinite(norm_ratio)) << i;
      loss = std::max(loss, std::abs(loss_ratio - 1));
      norm = std::max(norm, std::abs(norm_ratio - 1));
    }
    const bool shards = layout.tensor > 1;
    EXPECT_LE(worst.first_loss, shards ? allowed.first_loss : 1e-12);
    EXPECT_LE(worst.first_norm, shards ? allowed.first_norm : 1e-7);
    EXPECT_LE(worst.loss, allowed.loss);
    EXPECT_LE(worst.norm, allowed.norm);
    std::printf(
        "%s: first loss %.2g, norm %.2g; later losses %.2g, norms %.2g\n",
        LayoutToString(layout).c_str(), worst.first_loss, worst.first_norm,
        worst.loss, worst.norm);
  }
}

}  // namespace millrace
