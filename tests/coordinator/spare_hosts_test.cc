#include "coordinator/spare_hosts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace millrace {
namespace {

using testing::HasSubstr;

std::vector<WorkerIdx> WorkersAt(const std::vector<int32_t>& indices) {
  std::vector<WorkerIdx> workers;
  for (const int32_t idx : indices) workers.push_back(WorkerIdx{idx});
  return workers;
}

// Goal: spare hosts that could not take the place of others are refused, with
// the key, the hosts and what to do. Method: one thing wrong at a time.
TEST(CheckSpareHostsTest, RefusesHostsThatCannotTakeAPlace) {
  const SpareCandidate node1 = {"node1", 2, "cpu a"};
  const SpareCandidate node2 = {"node2", 2, "cpu a"};
  const auto refusal = [](int32_t num_spares,
                          const std::vector<SpareCandidate>& agents) {
    const absl::Status status = CheckSpareHosts(num_spares, agents);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_TRUE(CheckSpareHosts(1, std::vector{node1, node2}).ok());
  EXPECT_TRUE(CheckSpareHosts(0, std::vector{node1}).ok());
  EXPECT_THAT(refusal(1, {node1}),
              HasSubstr("fault.spare_hosts is 1, and the job has one host, "
                        "node1"));
  EXPECT_THAT(refusal(1, {node1, node1}), HasSubstr("one host"));
  EXPECT_THAT(refusal(2, {node1, node2}), HasSubstr("set it to 1 at most"));
  EXPECT_THAT(refusal(1, {node1, node2, node2}),
              HasSubstr("several agents are on node2"));
  EXPECT_THAT(refusal(1, {node1, {"node2", 4, "cpu a"}}),
              HasSubstr("node1 has 2 devices and node2 4"));
  EXPECT_THAT(refusal(1, {node1, {"node2", 2, "cpu b"}}),
              HasSubstr("a spare of another kind"));
}

// Goal: workers that are left keep their ranks, and a spare host has those of a
// lost one, in order. Method: four hosts of two devices, of which a layout of
// five or six ranks uses three; one of each kind is lost.
TEST(TakePlacesTest, LeavesTheOthersTheirRanks) {
  const std::vector<WorkerIdx> before = WorkersAt({0, 1, 2, 3, 4, 5});
  EXPECT_EQ(TakePlaces(before, WorkersAt({0, 1, 4, 5, 6, 7}), 2),
            WorkersAt({0, 1, 6, 7, 4, 5}));
  EXPECT_EQ(TakePlaces(before, WorkersAt({0, 1, 2, 3, 4, 5}), 2), before);
  EXPECT_EQ(TakePlaces(before, WorkersAt({0, 1, 4, 5}), 2), std::nullopt);
  // The idle device of the last host takes no place.
  EXPECT_EQ(
      TakePlaces(WorkersAt({0, 1, 2, 3, 4}), WorkersAt({0, 1, 4, 5, 6, 7}), 2),
      WorkersAt({0, 1, 6, 7, 4}));
  EXPECT_EQ(
      TakePlaces(WorkersAt({0, 1, 2, 3, 4}), WorkersAt({0, 1, 2, 3, 6, 7}), 2),
      WorkersAt({0, 1, 2, 3, 6}));
}

}  // namespace
}  // namespace millrace
