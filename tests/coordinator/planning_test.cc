#include "coordinator/planning.h"

#include <gtest/gtest.h>

#include <memory>

#include "coordinator/protocol/convert.h"

namespace millrace {
namespace {

// Every field that workers execute, another than its default.
const Layout kLayout = {
    .pipeline = 2,
    .data = 3,
    .tensor = 4,
    .micro_batch = 5,
    .num_microbatches = 6,
    .extra_microbatches = 2,
    .zero = 2,
    .precision = Precision::kBfloat16,
    .gradient_reduction = GradientReduction::kBfloat16,
    .moments = MomentFormat::kBlocks8,
    .objective = Objective::kPreference,
    .document_length = 600,
    .recompute = Recompute::kCheap,
    .schedule = Schedule::kListScheduled,
    .listed_stages = {{1, 2, 3, 40, 50, 600}, {4, 5, 6, 70, 80, 900}},
    .listed_transfer_us = 7,
    .copy_engines = {.transfers = true, .tensor_reductions = true}};

// Goal: what a restarted coordinator reads from its log is what was planned,
// and what is no plan is refused. Method: there and back.
TEST(PlanRecordTest, RoundTrips) {
  const PlanRecord record = {.layout = kLayout,
                             .num_devices = 12,
                             .step_time_s = 0.125,
                             .memory_bytes = 123456789012,
                             .program_hashes = {1, ~uint64_t{0}},
                             .snapshots = SnapshotPlan{int64_t{5} << 30, 0.01},
                             .ranks_per_host = 8,
                             .resume_path = "a/step-00000007",
                             .members = {WorkerIdx{0}, WorkerIdx{2}},
                             .devices_by_agent = {3},
                             .left_out = {WorkerIdx{1}}};
  const auto read = PlanRecordFromJson(PlanRecordToJson(record));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, record);
  PlanRecord without = record;
  without.snapshots.reset();
  EXPECT_EQ(*PlanRecordFromJson(PlanRecordToJson(without)), without);
  EXPECT_EQ(PlanRecordFromJson("{}").status().code(),
            absl::StatusCode::kDataLoss);
  for (const char* word : {"\"bf16\"", "\"list\""}) {
    std::string other = PlanRecordToJson(record);
    const std::string known = word;
    other.replace(other.find(known), known.size(), "\"x\"");
    EXPECT_EQ(PlanRecordFromJson(other).status().code(),
              absl::StatusCode::kDataLoss)
        << word;
  }
  EXPECT_EQ(PlanRecordFromJson(std::string(100'000, '[')).status().code(),
            absl::StatusCode::kDataLoss);
}

// Goal: workers run the layout that was planned, in all of its fields. Method:
// there and back.
TEST(LayoutMessageTest, RoundTrips) {
  EXPECT_EQ(FromMessage(ToMessage(kLayout)), kLayout);
  EXPECT_EQ(FromMessage(ToMessage(Layout{})), Layout{});
  Layout by_stage = kLayout;
  SetRecompute("full, norm+qkv", &by_stage);
  ASSERT_EQ(by_stage.recompute_by_stage.size(), 2u);
  EXPECT_EQ(FromMessage(ToMessage(by_stage)), by_stage);
  const auto read = PlanRecordFromJson(PlanRecordToJson({.layout = by_stage}));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->layout, by_stage);
  Layout others = kLayout;
  others.copy_engines = {.tensor_gathers = true, .data_gathers = true};
  EXPECT_EQ(FromMessage(ToMessage(others)), others);
}

// Goal: workers choose by the tuning that was planned with. Method: there and
// back, every field another than its default.
TEST(KernelTuningMessageTest, RoundTrips) {
  const KernelTuning tuning = {
      .device = "d",
      .machine = "m",
      .version = "v",
      .date = "t",
      .command = "c",
      .kernels = {{"f", "a=1", "b=2", 0.5, 0.25}, {"g", "a=3", "b=4", 2, 3}},
      .products = {{"m1n2k3", "x", 0.125}}};
  EXPECT_EQ(FromMessage(ToMessage(tuning)), tuning);
  EXPECT_EQ(FromMessage(ToMessage(KernelTuning{})), KernelTuning{});
}

// Goal: hosts may have different numbers of GPUs, not different GPUs. Method:
// fingerprints of both.
TEST(CheckOneGpuKindTest, TellsKindsApart) {
  EXPECT_TRUE(CheckOneGpuKind({}).ok());
  EXPECT_TRUE(CheckOneGpuKind({"NVIDIA-H200-x4", "NVIDIA-H200-x8"}).ok());
  const absl::Status unlike =
      CheckOneGpuKind({"NVIDIA-H200-x4", "NVIDIA-H100-x4"});
  EXPECT_EQ(unlike.code(), absl::StatusCode::kFailedPrecondition);
}

// Goal: a profile of four GPUs serves one to four of that kind without a word,
// and is called foreign or stale elsewhere. Method: each case.
TEST(GpuProfileWarningsTest, FitsFewerOfTheSameKind) {
  HardwareProfile profile;
  profile.ranks_per_host = 4;
  profile.provenance = {.machine = "NVIDIA-H200-x4",
                        .description = "4 x NVIDIA H200",
                        .num_ranks = 4,
                        .threads_per_device = 1};
  const auto num_warnings = [&](const std::string& machine, int32_t num_ranks,
                                int32_t ranks_per_host = 0) {
    return GpuProfileWarnings(profile, {.machine = machine,
                                        .num_ranks = num_ranks,
                                        .ranks_per_host = ranks_per_host})
        .size();
  };
  EXPECT_EQ(num_warnings("NVIDIA-H200-x4", 4), 0u);
  EXPECT_EQ(num_warnings("NVIDIA-H200-x1", 1), 0u);
  EXPECT_EQ(num_warnings("NVIDIA-H200-x8", 8), 1u);
  EXPECT_EQ(num_warnings("NVIDIA-H100-x4", 4), 1u);
  // On two hosts of two: their links are not those within a host of four.
  EXPECT_EQ(num_warnings("NVIDIA-H200-x2", 4, 2), 1u);
}

// Goal: nobody measures for a minute what no layout can hold. Method: a model
// whose state is a little less, and a little more, than two devices have.
TEST(CheckStateFitsTest, ComparesStateWithAllDevices) {
  JobSpec job;
  job.model = {.vocab_size = 512,
               .hidden = 256,
               .num_layers = 4,
               .num_heads = 4,
               .num_kv_heads = 4,
               .head_dim = 64,
               .ffn_hidden = 512,
               .sequence_length = 256};
  const int64_t state_bytes = 12 * CountParameters(job.model).total;
  DeviceFacts devices = {.num_devices = 2, .memory_bytes = state_bytes / 2 + 1};
  EXPECT_EQ(CheckStateFits(job, devices), absl::OkStatus());
  devices.memory_bytes = state_bytes / 2 - 1;
  const absl::Status status = CheckStateFits(job, devices);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("use at least 3 devices"), std::string::npos)
      << status;
  job.resources.memory_per_device_bytes = state_bytes;
  EXPECT_EQ(CheckStateFits(job, devices), absl::OkStatus());
}

// Goal: the plan for devices that were there before is found again, the
// newest of several, if it fits them; the first one is never forgotten. Method:
// plans of devices that differ in one fact each.
TEST(MadePlansTest, FindsThePlanOfTheSameDevices) {
  const DeviceFacts all = {.num_devices = 8,
                           .ranks_per_host = 4,
                           .machines = {"a", "a"},
                           .memory_bytes = 1000};
  DeviceFacts fewer = all;
  fewer.num_devices = 4;
  fewer.machines = {"a"};
  const auto plan_of = [](int64_t bytes) {
    Plan plan;
    plan.prediction.persistent_bytes = bytes;
    return std::make_shared<const Plan>(plan);
  };
  const auto first = plan_of(900), second = plan_of(800), third = plan_of(700);
  MadePlans made;
  EXPECT_EQ(made.Find(all), nullptr);
  made.Add(all, first);
  made.Add(fewer, second);
  DeviceFacts again = all;
  again.may_leave_idle = true;
  EXPECT_EQ(made.Find(again), first);
  EXPECT_EQ(made.Find(fewer), second);
  made.Add(fewer, third);
  EXPECT_EQ(made.Find(fewer), third);
  again.memory_bytes = 899;
  EXPECT_EQ(made.Find(again), nullptr);
  again = all;
  again.machines[1] = "b";
  EXPECT_EQ(made.Find(again), nullptr);
  for (int32_t i = 20; i < 30; ++i) {
    fewer.num_devices = i;
    made.Add(fewer, second);
  }
  EXPECT_EQ(made.Find(all), first);
  fewer.num_devices = 20;
  EXPECT_EQ(made.Find(fewer), nullptr);
}

}  // namespace
}  // namespace millrace
