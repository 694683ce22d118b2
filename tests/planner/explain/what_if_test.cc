#include "planner/explain/what_if.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "planner/job/layout_space.h"
#include "planner/profile/changed_hardware.h"
#include "planner/text/quantity.h"
#include "tests/planner/planning_fixture.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

PlanningCase MakeCase() {
  PlanningCase planned = SmallCase(16);
  planned.profile.precision = Precision::kBfloat16;
  planned.profile.device = {
      .name = "round", .bf16_flops_per_s = 1e15, .memory_bytes_per_s = 4e12};
  planned.profile.network = {
      {.name = "nvlink", .devices = 8, .bytes_per_s = 450e9, .latency_s = 1e-6},
      {.name = "fabric", .devices = 0, .bytes_per_s = 50e9, .latency_s = 5e-6}};
  return planned;
}

absl::StatusOr<HardwareProfile> LoadOther(const std::string& name) {
  if (name != "other") return absl::NotFoundError("known: other");
  HardwareProfile other = MakeCase().profile;
  other.name = "other";
  other.device.bf16_flops_per_s = 2e15;
  return other;
}

absl::StatusOr<std::vector<ValueChange>> Apply(
    const std::vector<std::string>& settings, PlanningCase* planned) {
  return ApplyWhatIf(settings, LoadOther, planned);
}

// Goal: each kind of key changes what it names, and the change is told in the
// words of the question. Method: one setting of each kind.
TEST(WhatIfTest, ChangesWhatIsNamed) {
  PlanningCase planned = MakeCase();
  const auto changes =
      Apply({"devices=1024", "link.inter_node=800Gb/s", "link.nvlink=900GB/s",
             "link.fabric.latency=2us", "link.intra_node.devices=72",
             "device.memory=141GB", "device.bf16_flops=1500TFLOP/s",
             "device.memory_bandwidth=2x", "training.global_batch=512",
             "model.sequence_length=128", "layout.tensor=4"},
            &planned);
  ASSERT_TRUE(changes.ok()) << changes.status();
  EXPECT_EQ(planned.num_devices, 1024);
  EXPECT_DOUBLE_EQ(planned.profile.network[1].bytes_per_s, 100e9);
  EXPECT_DOUBLE_EQ(planned.profile.network[0].bytes_per_s, 900e9);
  EXPECT_DOUBLE_EQ(planned.profile.network[1].latency_s, 2e-6);
  EXPECT_EQ(planned.profile.network[0].devices, 72);
  EXPECT_EQ(planned.profile.device_memory_bytes, 141'000'000'000);
  EXPECT_DOUBLE_EQ(planned.profile.device.bf16_flops_per_s, 1.5e15);
  EXPECT_DOUBLE_EQ(planned.profile.device.memory_bytes_per_s, 8e12);
  EXPECT_EQ(planned.job.training.global_batch, 512);
  EXPECT_EQ(planned.job.model.sequence_length, 128);
  EXPECT_EQ(planned.job.layout.tensor, 4);
  EXPECT_EQ((*changes)[0].before, "16");
  EXPECT_EQ((*changes)[0].after, "1024");
  EXPECT_EQ((*changes)[1].key, "link.fabric");
  EXPECT_EQ((*changes)[1].before, "400 Gb/s");
  EXPECT_EQ((*changes)[1].after, "800 Gb/s");
  EXPECT_EQ((*changes)[7].before, "4 TB/s");
  EXPECT_EQ((*changes)[7].after, "8 TB/s");
  EXPECT_EQ((*changes)[10].before, "auto");
}

// Goal: measured tables follow the data sheet, since both describe one machine,
// and what a figure does not touch stays. Method: the made-up profile's rows.
TEST(WhatIfTest, ScalesWhatWasMeasured) {
  const PlanningCase before = MakeCase();
  PlanningCase planned = before;
  ASSERT_TRUE(Apply({"device.flops=2x", "link.nvlink=4x"}, &planned).ok());
  EXPECT_DOUBLE_EQ(planned.profile.gemms[0].seconds,
                   before.profile.gemms[0].seconds / 2);
  EXPECT_DOUBLE_EQ(planned.profile.attention[1].seconds,
                   before.profile.attention[1].seconds / 2);
  EXPECT_EQ(planned.profile.bandwidth[0].seconds,
            before.profile.bandwidth[0].seconds);
  // Rows of each kind: 64 B, 64 KiB, 16 MiB. The latency of the first stays.
  const double latency = before.profile.communication[0].seconds;
  EXPECT_DOUBLE_EQ(planned.profile.communication[0].seconds, latency);
  EXPECT_NEAR(planned.profile.communication[2].seconds,
              latency + (before.profile.communication[2].seconds - latency) / 4,
              1e-12);
  // Groups of two do not reach beyond a domain of eight.
  planned = before;
  ASSERT_TRUE(Apply({"link.fabric=4x"}, &planned).ok());
  EXPECT_EQ(planned.profile.communication[2].seconds,
            before.profile.communication[2].seconds);
}

// Goal: another profile is what the other settings then change, in any order.
// Method: profile= last.
TEST(WhatIfTest, TakesTheProfileFirst) {
  PlanningCase planned = MakeCase();
  const auto changes =
      Apply({"device.bf16_flops=1.5x", "profile=other"}, &planned);
  ASSERT_TRUE(changes.ok()) << changes.status();
  EXPECT_EQ(planned.profile.name, "other");
  EXPECT_DOUBLE_EQ(planned.profile.device.bf16_flops_per_s, 3e15);
  EXPECT_EQ((*changes)[0].before, "2 PFLOP/s");
  EXPECT_EQ((*changes)[1].after, "other");
}

// Goal: a wrong setting says what was expected, and changes nothing. Method:
// one of each mistake.
TEST(WhatIfTest, RefusesWithWhatWasExpected) {
  struct Case {
    std::vector<std::string> settings;
    const char* message;
  };
  for (const Case& wrong : std::vector<Case>{
           {{"devices"}, "expected KEY=VALUE"},
           {{"devices=0"}, "an integer of at least 1"},
           {{"device.memroy=141GB"}, "the nearest are device.memory"},
           {{"link.inter_nod=800Gb/s"}, "link.inter_node"},
           {{"link.fabric=800"}, "units: b/s"},
           {{"link.fabric=800GbPS"}, "units: b/s"},
           {{"link.fabric=800gb/s"}, "did you mean Gb/s or GB/s?"},
           {{"link.fabric=-1Gb/s"}, "a rate such as 800Gb/s"},
           {{"link.fabric=0Gb/s"}, "a rate such as 800Gb/s"},
           {{"link.fabric=0x"}, "a rate such as 800Gb/s"},
           {{"device.memory=nanGB"}, "a size such as"},
           {{"device.fp8_flops=2PFLOP/s"}, "does not state this figure"},
           {{"link.fabric.devices=4"}, "already joins 8 devices"},
           {{"link.all=800Gb/s"}, "a factor such as 1.25x"},
           {{"profile=none"}, "known: other"},
           {{"devices=4", "devices=8"}, "given twice"},
           {{"training.global_batch=none"}, "an integer of at least 1"},
           {{"model.kv_heads=3"}, "contradicts itself"}}) {
    PlanningCase planned = MakeCase();
    const absl::Status status = Apply(wrong.settings, &planned).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << wrong.settings[0];
    EXPECT_THAT(std::string(status.message()), HasSubstr(wrong.message));
    EXPECT_EQ(planned.job, MakeCase().job);
    EXPECT_EQ(planned.profile.device, MakeCase().profile.device);
    EXPECT_EQ(planned.num_devices, 16);
  }
}

// Goal: what would change nothing is refused: the job's own limit overrides the
// device's memory, and a profile of tables has no links to name. Method: such a
// job and such a profile.
TEST(WhatIfTest, RefusesWhatWouldChangeNothing) {
  PlanningCase limited = MakeCase();
  limited.job.resources.memory_per_device_bytes = 1 << 30;
  EXPECT_THAT(
      std::string(Apply({"device.memory=141GB"}, &limited).status().message()),
      HasSubstr("resources.memory_per_device"));
  PlanningCase measured = MakeCase();
  measured.profile.network.clear();
  EXPECT_THAT(
      std::string(Apply({"link.inter_node=2x"}, &measured).status().message()),
      HasSubstr("link.all=2x"));
  EXPECT_TRUE(Apply({"link.all=2x"}, &measured).ok());
}

// Goal: of one level only a domain without end is between nodes. Method: a
// profile of one host, and of one fabric.
TEST(WhatIfTest, KnowsWhichLevelIsBetweenNodes) {
  HardwareProfile host = MakeCase().profile;
  EXPECT_EQ(LinkLevel("inter_node", host), 1u);
  EXPECT_EQ(LinkLevel("intra_node", host), 0u);
  EXPECT_EQ(LinkLevel("fabric", host), 1u);
  host.network.pop_back();
  EXPECT_EQ(LinkLevel("inter_node", host), std::nullopt);
  host.network[0].devices = 0;
  EXPECT_EQ(LinkLevel("inter_node", host), 0u);
}

// Goal: quantities read back as they are written, in the unit that was typed.
// Method: a few of each dimension.
TEST(QuantityTest, ReadsAndWritesUnits) {
  const auto bits = ParseQuantity("800 Gb/s", Dimension::kBytesPerSecond);
  ASSERT_TRUE(bits.ok()) << bits.status();
  EXPECT_DOUBLE_EQ(bits->value, 1e11);
  EXPECT_EQ(FormatQuantity(bits->value, Dimension::kBytesPerSecond, bits->unit),
            "800 Gb/s");
  EXPECT_EQ(FormatQuantity(bits->value, Dimension::kBytesPerSecond, ""),
            "100 GB/s");
  EXPECT_EQ(ParseQuantity("80GiB", Dimension::kBytes)->value,
            80.0 * (int64_t{1} << 30));
  EXPECT_EQ(ParseQuantity("0us", Dimension::kSeconds)->value, 0);
  EXPECT_EQ(FormatQuantity(0.25, Dimension::kBytes, ""), "0.25 B");
  EXPECT_EQ(ParseFactor("1.25x"), 1.25);
  EXPECT_EQ(ParseFactor("-1x"), std::nullopt);
  EXPECT_EQ(ParseFactor("x"), std::nullopt);
}

// Goal: a pinned job allows the one layout. Method: pin, read the keys back.
TEST(WhatIfTest, PinsALayout) {
  JobSpec job = MakeCase().job;
  PinLayout({.pipeline = 2,
             .data = 4,
             .tensor = 2,
             .micro_batch = 1,
             .zero = 1,
             .recompute = Recompute::kFull,
             .schedule = Schedule::kZeroBubble},
            &job);
  EXPECT_EQ(job.layout.pipeline, 2);
  EXPECT_EQ(job.layout.context, 1);
  EXPECT_EQ(job.layout.zero, 1);
  EXPECT_EQ(job.layout.recompute, "full");
  EXPECT_EQ(job.layout.schedule, "zero_bubble");
}

}  // namespace
}  // namespace millrace
