// Needs two to four GPUs that reach each other's memory.

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "gtest/gtest.h"
#include "planner/profile/profile_file.h"
#include "tests/worker/cuda/rank_processes.h"
#include "worker/communicate/directory_rendezvous_store.h"
#include "worker/cuda/measure/profiler.h"

namespace millrace {
namespace {

constexpr absl::Duration kTestTimeout = absl::Seconds(90);

ProfileRequest RequestOf(int32_t num_ranks) {
  const ProfileOp large = {OpKind::kGemm,
                           GemmAttributes{.m = 8192, .n = 28672, .k = 4096}};
  // Without a mix there would be nothing for communication to delay.
  ProfileRequest request = {
      .ops = {{OpKind::kGemm, GemmAttributes{.m = 4096, .n = 4096, .k = 4096}},
              large,
              {OpKind::kAdd, ElementwiseAttributes{1024, 4096}}},
      .mixes = {{.micro_batch = 1, .ops = {large, large, large, large}}}};
  for (int32_t size = 2; size <= num_ranks; size *= 2) {
    for (const OpKind kind :
         {OpKind::kAllGather, OpKind::kReduceScatter, OpKind::kAllReduce}) {
      for (const int64_t bytes : {int64_t{4096}, int64_t{256} << 20}) {
        request.communication.push_back(
            {.kind = kind, .group_size = size, .bytes = bytes});
      }
    }
  }
  for (const int64_t bytes : {int64_t{4096}, int64_t{64} << 20}) {
    request.communication.push_back(
        {.kind = OpKind::kSend, .group_size = 2, .bytes = bytes});
  }
  return request;
}

// Goal: ranks that measure together return equal tables, with every size and
// group of the request, at rates that links between GPUs have. Method: two
// sizes of each kind over groups of two and of all; a small message costs
// microseconds, a large one moves tens to hundreds of gigabytes a second and
// link; ops, contention and what overlap costs are there too.
TEST(CudaLinksProfileTest, MeasuresLinks) {
  const int32_t num_ranks = CountDevices() >= 4 ? 4 : 2;
  ASSERT_GE(CountDevices(), 2) << "this test needs two GPUs";
  RankProcesses processes;
  const ProfileRequest request = RequestOf(num_ranks);
  const absl::Status status =
      processes.RunAll(num_ranks, kTestTimeout, [&](Rank rank) -> absl::Status {
        DirectoryRendezvousStore store(processes.folder() + "/store");
        ASSIGN_OR_RETURN(
            HardwareProfile profile,
            MeasureCudaRequest(request, {.num_ranks = num_ranks,
                                         .ranks_per_host = num_ranks,
                                         .rank = rank,
                                         .store = &store,
                                         .time_budget = absl::Seconds(4)}));
        profile.provenance = {.machine = "GPUs",
                              .description = "GPUs",
                              .version = "0",
                              .date = "today",
                              .num_ranks = num_ranks,
                              .threads_per_device = 1};
        profile.device_memory_bytes = 1;
        const std::string mine = ProfileToYaml(profile);
        if (rank == Rank{0}) return store.Set("table", mine);
        ASSIGN_OR_RETURN(const std::string first,
                         store.Get("table", kTestTimeout));
        if (mine != first) {
          return absl::InternalError("ranks measured different tables:\n" +
                                     first + "\n" + mine);
        }
        return absl::OkStatus();
      });
  ASSERT_TRUE(status.ok()) << status;
  DirectoryRendezvousStore store(processes.folder() + "/store");
  const auto yaml = store.Get("table", absl::ZeroDuration());
  ASSERT_TRUE(yaml.ok()) << yaml.status();
  const auto profile = ParseProfile(*yaml, "table");
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_EQ(profile->gemms.size(), 2u);
  EXPECT_EQ(profile->compute_contention.size(), static_cast<size_t>(num_ranks));
  for (const double factor : profile->compute_contention) {
    std::printf("contention %.3f\n", factor);
    EXPECT_LT(factor, 1.5);
  }
  std::printf("beside each other: compute %.3f, communication %.3f\n",
              profile->overlap.compute, profile->overlap.communication);
  EXPECT_GT(profile->overlap.compute, 1);
  EXPECT_LT(profile->overlap.compute, 8);
  EXPECT_LT(profile->overlap.communication, 12);
  // Each figure by what a context and NCCL's buffers are known to take.
  const MemoryOverhead& memory = profile->memory_overhead;
  std::printf("beside arenas: process %ld MiB, communicators %ld and %ld MiB\n",
              memory.process >> 20, memory.first_communicator >> 20,
              memory.communicator >> 20);
  EXPECT_GT(memory.process, int64_t{200} << 20);
  EXPECT_LT(memory.process, int64_t{1000} << 20);
  EXPECT_GT(memory.first_communicator, memory.communicator);
  EXPECT_GT(memory.communicator, int64_t{10} << 20);
  EXPECT_LT(memory.first_communicator, int64_t{2000} << 20);
  // PCIe 3 at least, and at most what NVLink gives to a host.
  std::printf("to the host %.1f GB/s\n",
              1e-9 * profile->host_link.to_host_bytes_per_s);
  EXPECT_GT(profile->host_link.to_host_bytes_per_s, 3e9);
  EXPECT_LT(profile->host_link.to_host_bytes_per_s, 500e9);
  ASSERT_EQ(profile->communication.size(), request.communication.size());
  for (const CommunicationTime& time : profile->communication) {
    std::printf("%-15s of %d, %9ld bytes: %8.1f us, %5.0f GB/s\n",
                OpKindName(time.kind), time.group_size, time.bytes,
                1e6 * time.seconds, 1e-9 * time.bytes / time.seconds);
    const double rate = static_cast<double>(time.bytes) / time.seconds;
    if (time.bytes > 1 << 20) {
      EXPECT_GT(rate, 1e10);
      EXPECT_LT(rate, 1.5e12);
    } else {
      EXPECT_LT(time.seconds, 2e-4);
    }
  }
}

}  // namespace
}  // namespace millrace
