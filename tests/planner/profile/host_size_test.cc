#include "planner/profile/host_size.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "planner/cost/op_cost.h"
#include "planner/job/job_file.h"
#include "planner/search/search.h"
#include "tests/planner/shipped.h"

namespace millrace {
namespace {

constexpr double kBytes = 1 << 28;

CollectiveAttributes GatherOf(Group group) {
  return {.group = group,
          .num_elements = static_cast<int64_t>(kBytes) / 2,
          .dtype = DType::kBfloat16};
}

double GatherSeconds(const CostModel& cost, const Layout& layout, Group group) {
  return cost.Seconds(layout, OpKind::kAllGather, GatherOf(group));
}

// Goal: a profile of four GPUs of a host prices links among the eight of a
// larger host as it does among the four, not as links between hosts. Method:
// the shipped profile of H200s. A ring over eight ranks carries 7/8 of the
// bytes over a link, one over four 3/4.
TEST(HostSizeTest, LargerHostsHaveLikeLinks) {
  const HardwareProfile four = Shipped("h200-sxm");
  ASSERT_EQ(four.ranks_per_host, 4);
  ASSERT_TRUE(WasMeasuredOnOneHost(four));
  const HardwareProfile eight = WithHostsOf(8, four);
  EXPECT_EQ(eight.ranks_per_host, 8);
  EXPECT_EQ(eight.provenance.num_ranks, 4);
  EXPECT_EQ(eight.network.front().devices, 8);
  ASSERT_EQ(eight.compute_contention.size(), 8);
  EXPECT_EQ(eight.compute_contention.back(), four.compute_contention.back());
  const CostModel cost = CostOf(eight);
  const double of_four = GatherSeconds(CostOf(four), {.data = 4}, Group::kData);
  EXPECT_NEAR(GatherSeconds(cost, {.data = 8}, Group::kData),
              of_four * (7.0 / 8) / (3.0 / 4), 0.01 * of_four);
  // A switch has no neighbours: every second rank is as near.
  EXPECT_DOUBLE_EQ(GatherSeconds(cost, {.data = 4, .tensor = 2}, Group::kData),
                   of_four);
  EXPECT_GT(GatherSeconds(CostOf(four), {.data = 8}, Group::kData),
            1.5 * of_four);
}

// Goal: a plan for a host of eight is one that workers can run, though four of
// its GPUs were measured; one for two such hosts is on paper. Method: 8B.
TEST(HostSizeTest, ALargerHostIsNotOnPaper) {
  const absl::StatusOr<JobSpec> job =
      LoadJob("configs/bench/llama3-8b-8gpu.yaml");
  ASSERT_TRUE(job.ok()) << job.status();
  const HardwareProfile four = Shipped("h200-sxm");
  const HardwareProfile eight = WithHostsOf(8, four);
  EXPECT_TRUE(IsPlanOnPaper(*job, 8, four));
  EXPECT_FALSE(IsPlanOnPaper(*job, 8, eight));
  EXPECT_TRUE(IsPlanOnPaper(*job, 16, eight));
}

// Goal: a profile says no more than it knows. Method: hosts that are not
// larger, a data sheet's hosts, and ranks of several hosts.
TEST(HostSizeTest, OthersStayAsTheyAre) {
  const HardwareProfile four = Shipped("h200-sxm");
  for (const int32_t devices : {0, 2, 4}) {
    EXPECT_EQ(WithHostsOf(devices, four).ranks_per_host, 4) << devices;
  }
  const HardwareProfile sheet = Shipped("h100-sxm");
  EXPECT_FALSE(WasMeasuredOnOneHost(sheet));
  EXPECT_EQ(WithHostsOf(16, sheet).ranks_per_host, sheet.ranks_per_host);
  HardwareProfile hosts = four;
  hosts.provenance.num_ranks = 8;
  EXPECT_FALSE(WasMeasuredOnOneHost(hosts));
  EXPECT_EQ(WithHostsOf(8, hosts).ranks_per_host, 4);
}

}  // namespace
}  // namespace millrace
