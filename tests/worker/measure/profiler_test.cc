#include "worker/measure/profiler.h"

#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/cost/op_cost.h"
#include "planner/profile/prediction_interval.h"
#include "planner/profile/profile_file.h"
#include "tests/e2e/equivalence_job.h"
#include "worker/communicate/in_process_communicator.h"
#include "worker/measure/machine.h"

namespace millrace {
namespace {

using testing::Contains;
using testing::Field;
using testing::HasSubstr;

// Measures SmallJob() on `num_ranks` threads, as if they were on hosts of so
// many; one profile a rank.
std::vector<HardwareProfile> Measure(int32_t num_ranks,
                                     int32_t ranks_per_host) {
  InProcessHub hub;
  std::vector<HardwareProfile> profiles(num_ranks);
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto factory = hub.NewFactory();
      auto profile =
          MeasureHardwareProfile({.job = SmallJob(),
                                  .num_ranks = num_ranks,
                                  .ranks_per_host = ranks_per_host,
                                  .rank = Rank{rank},
                                  .num_threads = 1,
                                  .communicators = factory.get(),
                                  .time_budget = absl::Milliseconds(300)});
      ASSERT_TRUE(profile.ok()) << profile.status();
      profiles[rank] = *std::move(profile);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return profiles;
}

// Goal: a measured profile has every table that the cost model needs, is the
// same on all ranks, and says where it came from. Method: a small job on 1, 2,
// 3 and 4 ranks, with little time.
TEST(ProfilerTest, MeasuresWhatTheCostModelNeeds) {
  for (const int32_t num_ranks : {1, 2, 3, 4}) {
    SCOPED_TRACE(num_ranks);
    const std::vector<HardwareProfile> profiles = Measure(num_ranks, num_ranks);
    const HardwareProfile& profile = profiles[0];
    const auto cost = CostModel::Create(profile);
    EXPECT_TRUE(cost.ok()) << cost.status();
    ASSERT_EQ(profile.compute_contention.size(),
              static_cast<size_t>(num_ranks));
    EXPECT_EQ(profile.compute_contention[0], 1.0);
    EXPECT_GT(profile.launch_overhead_s, 0);
    EXPECT_GT(profile.device_memory_bytes, 0);
    EXPECT_EQ(profile.provenance.num_ranks, num_ranks);
    EXPECT_EQ(profile.provenance.machine, DescribeMachine()->Fingerprint());
    EXPECT_EQ(profile.communication.empty(), num_ranks == 1);
    // Little scatter is known of such short ops, but they were all repeated.
    EXPECT_THAT(profile.constants,
                Contains(Field(&ModelConstant::name, std::string(kRunNoise))));
    for (const ModelConstant& noise : profile.constants) {
      EXPECT_GT(noise.value, 0) << noise.name;
      EXPECT_LE(noise.value, 1) << noise.name;
      EXPECT_THAT(noise.source, HasSubstr("millrace profile"));
    }
    for (HardwareProfile other : profiles) {
      other.provenance.date = profile.provenance.date;
      EXPECT_EQ(ProfileToYaml(other), ProfileToYaml(profile));
    }
  }
}

// Goal: ranks of several hosts measure groups inside hosts and across them, and
// files keep which is which. Method: four ranks, two on a host.
TEST(ProfilerTest, MeasuresGroupsAcrossHosts) {
  const std::vector<HardwareProfile> profiles = Measure(4, 2);
  std::set<std::pair<int64_t, int64_t>> sizes_and_hosts;
  for (const CommunicationTime& row : profiles[0].communication) {
    EXPECT_GT(row.seconds, 0);
    sizes_and_hosts.insert({row.group_size, row.hosts});
  }
  using Found = std::pair<int64_t, int64_t>;
  EXPECT_EQ(sizes_and_hosts, (std::set<Found>{{2, 1}, {2, 2}, {4, 2}}));
  const std::string yaml = ProfileToYaml(profiles[0]);
  const auto again = ParseProfile(yaml, "profile.yaml");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(ProfileToYaml(*again), yaml);
}

// Goal: every op kind that a job uses can be measured by itself. Method: the
// kinds seen in a request, each with a time; of a job that rounds gradients,
// and those that only other families have.
TEST(ProfilerTest, CoversEveryKindOfTheJob) {
  JobSpec job = SmallJob();
  job.training.gradient_reduction = "bf16";
  auto request = BuildProfileRequest(job.model, job.training, 4, 4);
  ASSERT_TRUE(request.ok()) << request.status();
  std::set<OpKind> kinds;
  for (const ProfileOp& op : request->ops) kinds.insert(op.kind);
  ModelSpec normed = job.model;
  normed.qkv_bias = true;
  normed.qk_norm = true;
  ModelSpec gpt2 = job.model;
  gpt2.learned_positions = gpt2.sequence_length;
  gpt2.norm = NormKind::kLayer;
  gpt2.feed_forward = FeedForward::kGelu;
  ModelSpec gemma = job.model;
  gemma.feed_forward = FeedForward::kGeglu;
  TrainingSpec of_pairs = job.training;
  of_pairs.objective = "dpo";
  TrainingSpec in_float8 = job.training;
  in_float8.precision = "fp8";
  TrainingSpec in_blocks = job.training;
  in_blocks.precision = "fp8_blockwise";
  ModelSpec of_blocks = job.model;  // Blocks divide its dims.
  of_blocks.hidden = of_blocks.ffn_hidden = 128;
  of_blocks.head_dim = 128;
  of_blocks.sequence_length = 128;
  of_blocks.attention_format = AttentionFormat::kFloat8;
  for (const auto& [model, training] :
       {std::pair{normed, job.training}, std::pair{gpt2, job.training},
        std::pair{gemma, job.training}, std::pair{job.model, of_pairs},
        std::pair{job.model, in_float8}, std::pair{of_blocks, in_blocks}}) {
    const auto options = BuildProfileRequest(model, training, 4, 4);
    ASSERT_TRUE(options.ok()) << options.status();
    for (const ProfileOp& op : options->ops) {
      if (kinds.insert(op.kind).second) request->ops.push_back(op);
    }
  }
  // All but collectives and transfers.
  EXPECT_GE(kinds.size(), static_cast<size_t>(kNumExecutedOpKinds - 5 - 1));
  InProcessHub hub;
  const auto factory = hub.NewFactory();
  const auto profile = MeasureRequest(
      {.ops = request->ops},
      {.communicators = factory.get(), .time_budget = absl::Milliseconds(200)});
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_EQ(profile->gemms.size() + profile->attention.size() +
                profile->cross_entropy.size() + profile->bandwidth.size(),
            request->ops.size());
}

// Goal: a request that does not fit the ranks is refused, not waited for.
// Method: groups of three among one rank.
TEST(ProfilerTest, RefusesGroupsThatDoNotDivide) {
  InProcessHub hub;
  const auto factory = hub.NewFactory();
  const absl::Status status =
      MeasureRequest({.communication = {{.kind = OpKind::kAllReduce,
                                         .group_size = 3,
                                         .bytes = 64}}},
                     {.communicators = factory.get()})
          .status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("groups of 3 among 1"));
}

// Goal: fingerprints fit file names and tell machines apart. Method: by hand,
// and this machine's.
TEST(MachineTest, FingerprintsAreNames) {
  const Machine machine = {.processor = "AMD EPYC 9454 (48-Core) @ 2.7 GHz",
                           .num_cores = 2,
                           .memory_bytes = (int64_t{24} << 30) + 12345};
  EXPECT_EQ(machine.Fingerprint(), "AMD-EPYC-9454-48-Core-2-7-GHz-c2");
  EXPECT_EQ(machine.Description(),
            "AMD EPYC 9454 (48-Core) @ 2.7 GHz, 2 cores, 24.0 GiB");
  EXPECT_EQ(ThreadsPerDevice(machine, 4), 1);
  EXPECT_EQ(ThreadsPerDevice(machine, 1), 2);
  EXPECT_LT(DeviceMemoryBytes(machine, 2), machine.memory_bytes / 2);
  const auto here = DescribeMachine();
  ASSERT_TRUE(here.ok()) << here.status();
  EXPECT_GE(here->num_cores, 1);
  EXPECT_GT(here->memory_bytes, 0);
  EXPECT_EQ(here->Fingerprint(), DescribeMachine()->Fingerprint());
}

}  // namespace
}  // namespace millrace
