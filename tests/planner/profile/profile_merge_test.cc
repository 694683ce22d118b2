#include "planner/profile/profile_merge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <utility>

#include "planner/cost/op_cost.h"
#include "planner/profile/profile_file.h"
#include "planner/search/search.h"
#include "tests/planner/planning_fixture.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

MergedProfile MustMerge(const std::vector<ProfilePart>& parts) {
  absl::StatusOr<MergedProfile> merged = MergeProfiles(parts);
  EXPECT_TRUE(merged.ok()) << merged.status();
  return merged.ok() ? *std::move(merged) : MergedProfile{};
}

std::string ErrorOf(const std::vector<ProfilePart>& parts) {
  const absl::StatusOr<MergedProfile> merged = MergeProfiles(parts);
  if (merged.ok()) return "no error";
  EXPECT_EQ(merged.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(merged.status().message());
}

ProfilePart Part(const std::string& file, const MachineFigures& machine = {}) {
  return {.file = file, .profile = MakeProfile(machine)};
}

// A part without tables, as a data sheet's.
ProfilePart DataSheet(const std::string& file) {
  ProfilePart part = Part(file, {.num_ranks = 1, .ranks_per_host = 8});
  HardwareProfile& profile = part.profile;
  profile.provenance.machine = "data sheet";
  profile.provenance.date = "2026-12-31T00:00:00Z";
  profile.launch_overhead_s = 5e-6;
  profile.gemms.clear();
  profile.attention.clear();
  profile.cross_entropy.clear();
  profile.bandwidth.clear();
  profile.device = {.name = "chip",
                    .multiprocessors = 100,
                    .bf16_flops_per_s = 1e14,
                    .memory_bytes_per_s = 1e12,
                    .source = "its data sheet"};
  profile.network = {{.name = "fabric", .bytes_per_s = 1e9, .source = "same"}};
  profile.constants = {{.name = "gemm_share", .value = 0.7, .source = "fit"}};
  return part;
}

// Goal: every choice that some part made is kept, of two the newer tuning's,
// with where they came from; another device's are not. Method: three parts
// whose order is not that of their tunings.
TEST(ProfileMergeTest, KeepsTheNewestTuningOfEachChoice) {
  const auto kernel = [](const std::string& shape_class, int threads) {
    return KernelChoice{.family = "f",
                        .shape_class = shape_class,
                        .choice = "threads=" + std::to_string(threads),
                        .seconds = 1,
                        .start_seconds = 1};
  };
  ProfilePart a = Part("a.yaml"), b = Part("b.yaml"), c = Part("c.yaml");
  a.profile.tuning = {.device = "D",
                      .machine = "m",
                      .version = "1",
                      .date = "2026-03-01T00:00:00Z",
                      .command = "tune a",
                      .kernels = {kernel("x=1", 64)},
                      .products = {{.shape = "m1", .algorithm = "new"}}};
  b.profile.tuning = a.profile.tuning;
  b.profile.tuning.date = "2026-02-01T00:00:00Z";
  b.profile.tuning.command = "tune b";
  b.profile.tuning.kernels = {kernel("x=1", 32), kernel("x=2", 32)};
  b.profile.tuning.products = {{.shape = "m1", .algorithm = "old"},
                               {.shape = "m2", .algorithm = "old"}};
  c.profile.tuning = b.profile.tuning;
  c.profile.tuning.device = "other";
  c.profile.tuning.kernels = {kernel("x=3", 32)};
  const KernelTuning merged = MustMerge({b, c, a}).profile.tuning;
  EXPECT_EQ(merged.device, "D");
  EXPECT_EQ(merged.date, "2026-03-01T00:00:00Z");
  EXPECT_EQ(merged.command, "tune a; tune b (2026-02-01T00:00:00Z)");
  EXPECT_THAT(merged.kernels,
              ElementsAre(kernel("x=1", 64), kernel("x=2", 32)));
  EXPECT_THAT(merged.products,
              ElementsAre(ProductChoice{.shape = "m1", .algorithm = "new"},
                          ProductChoice{.shape = "m2", .algorithm = "old"}));
  // A part that was not tuned takes nothing away.
  EXPECT_EQ(MustMerge({a, Part("d.yaml")}).profile.tuning, a.profile.tuning);
}

// Goal: the merged table holds each row once, at the median of what measured
// it. Method: rows of one, two and three parts with known seconds.
TEST(ProfileMergeTest, JoinsRowsAtTheMedian) {
  ProfilePart a = Part("a.yaml"), b = Part("b.yaml"), c = Part("c.yaml");
  const auto row = [](int64_t bytes, double seconds) {
    return BandwidthTime{
        .kind = OpKind::kAdd, .bytes = bytes, .seconds = seconds};
  };
  a.profile.bandwidth = {row(1, 1.0), row(2, 1.0), row(3, 1.0)};
  b.profile.bandwidth = {row(4, 7.0), row(3, 1.02)};
  c.profile.bandwidth = {row(3, 1.05), row(2, 1.04)};
  const MergedProfile merged = MustMerge({a, b, c});
  std::vector<std::pair<int64_t, double>> rows;
  for (const BandwidthTime& time : merged.profile.bandwidth) {
    rows.emplace_back(time.bytes, time.seconds);
  }
  EXPECT_THAT(rows, ElementsAre(std::pair(1, 1.0), std::pair(2, 1.02),
                                std::pair(3, 1.02), std::pair(4, 7.0)));
  EXPECT_EQ(merged.profile.gemms.size(), a.profile.gemms.size());
  EXPECT_THAT(merged.warnings, IsEmpty());
}

// Goal: rows that differ in anything but their seconds stay apart. Method: one
// change to each column of each table.
TEST(ProfileMergeTest, KeepsDifferentRowsApart) {
  const ProfilePart a = Part("a.yaml");
  ProfilePart b = a;
  HardwareProfile& changed = b.profile;
  changed.gemms = {a.profile.gemms[0], a.profile.gemms[0], a.profile.gemms[0]};
  changed.gemms[0].m += 1;
  changed.gemms[1].n += 1;
  changed.gemms[2].k += 1;
  changed.attention.assign(6, a.profile.attention[0]);
  changed.attention[0].num_sequences += 1;
  changed.attention[1].sequence_length += 1;
  changed.attention[2].num_heads += 1;
  changed.attention[3].num_kv_heads += 1;
  changed.attention[4].head_dim += 1;
  changed.attention[5].window += 1;
  changed.cross_entropy.assign(4, a.profile.cross_entropy[0]);
  changed.cross_entropy[0].kind = OpKind::kCrossEntropyStats;
  changed.cross_entropy[1].num_tokens += 1;
  changed.cross_entropy[2].hidden += 1;
  changed.cross_entropy[3].vocab_rows += 1;
  changed.bandwidth.assign(2, a.profile.bandwidth[0]);
  changed.bandwidth[0].kind = OpKind::kZero;
  changed.bandwidth[1].bytes += 1;
  changed.communication.assign(3, a.profile.communication[0]);
  changed.communication[0].kind = OpKind::kReceive;
  changed.communication[1].group_size = 4;
  changed.communication[2].bytes += 1;
  for (const int64_t bytes : {64, 128}) {
    changed.copy_engines.push_back({{.kind = OpKind::kSend,
                                     .group_size = 2,
                                     .bytes = bytes,
                                     .seconds = 1e-5}});
  }
  const HardwareProfile merged = MustMerge({a, b}).profile;
  EXPECT_EQ(merged.gemms.size(), a.profile.gemms.size() + 3);
  EXPECT_EQ(merged.attention.size(), a.profile.attention.size() + 6);
  EXPECT_EQ(merged.cross_entropy.size(), a.profile.cross_entropy.size() + 4);
  EXPECT_EQ(merged.bandwidth.size(), a.profile.bandwidth.size() + 2);
  EXPECT_EQ(merged.communication.size(), a.profile.communication.size() + 3);
  EXPECT_EQ(merged.copy_engines.size(), 2u);
}

// Goal: whoever merges hears of rows that disagree, and of no others. Method:
// seconds 9 % and 25 % apart.
TEST(ProfileMergeTest, WarnsOfRowsFarApart) {
  const ProfilePart a = Part("a.yaml");
  ProfilePart b = Part("b.yaml");
  b.profile.gemms[0].seconds *= 1.09;
  b.profile.communication[1].seconds = 4e-4;
  ProfilePart first = a;
  first.profile.communication[1].seconds = 5e-4;
  const MergedProfile merged = MustMerge({first, b});
  EXPECT_THAT(
      merged.warnings,
      ElementsAre("all_gather of 2, 65536 bytes: 0.0005 s in a.yaml, 0.0004 s "
                  "in b.yaml; more than 10 % apart, took 0.00045 s"));
}

// Goal: each value is the newest that states it, in whatever order the files
// are given, and a measured one before a data sheet's. Method: two measured
// parts and a data sheet, given in every order.
TEST(ProfileMergeTest, TakesTheNewestThatStatesAValue) {
  ProfilePart old = Part("old.yaml"), young = Part("young.yaml");
  const ProfilePart sheet = DataSheet("sheet.yaml");
  old.profile.device = young.profile.device = sheet.profile.device;
  old.profile.memory_overhead = {.process = 5};
  old.profile.overlap = {.compute = 1.5, .communication = 2, .waits = true};
  old.profile.host_link = {.to_host_bytes_per_s = 5e10, .source = "old"};
  young.profile.provenance.date = "2026-02-01T00:00:00Z";
  young.profile.name = "young";
  young.profile.launch_overhead_s = 2e-6;
  young.profile.memory_overhead = {.process = 7};
  old.profile.constants = {{"pass_noise", 0.02, "old"},
                           {"run_noise", 0.5, "old"}};
  young.profile.constants = {{"run_noise", 0.03, "young"}};
  std::vector<ModelConstant> constants = sheet.profile.constants;
  constants.push_back(old.profile.constants[0]);
  constants.push_back(young.profile.constants[0]);
  std::vector<ProfilePart> parts = {old, sheet, young};
  const auto by_file = [](const ProfilePart& a, const ProfilePart& b) {
    return a.file < b.file;
  };
  std::sort(parts.begin(), parts.end(), by_file);
  do {
    const HardwareProfile merged = MustMerge(parts).profile;
    EXPECT_EQ(merged.name, "young");
    EXPECT_EQ(merged.launch_overhead_s, 2e-6);
    EXPECT_EQ(merged.memory_overhead.process, 7);
    EXPECT_EQ(merged.overlap, old.profile.overlap);
    EXPECT_EQ(merged.host_link, old.profile.host_link);
    EXPECT_EQ(merged.ranks_per_host, 4);
    EXPECT_EQ(merged.compute_contention.size(), 4u);
    EXPECT_EQ(merged.network, sheet.profile.network);
    EXPECT_EQ(merged.constants, constants);
    EXPECT_EQ(merged.provenance.machine, "made-up");
    EXPECT_EQ(merged.provenance.date, "2026-12-31T00:00:00Z");
    EXPECT_EQ(merged.provenance.description,
              "a machine of round figures; merged of sheet.yaml "
              "(2026-12-31T00:00:00Z), old.yaml (2026-01-01T00:00:00Z), "
              "young.yaml (2026-02-01T00:00:00Z)");
  } while (std::next_permutation(parts.begin(), parts.end(), by_file));
}

// Goal: profiles of one GPU and of four of the same host join, and what only
// four can tell stays theirs. Method: the newer one is of one rank.
TEST(ProfileMergeTest, JoinsProfilesOfOneAndOfFourRanks) {
  ProfilePart four = Part("four.yaml", {.contention_per_rank = 0.5});
  four.profile.provenance.machine = "NVIDIA-H200-x4";
  ProfilePart one = Part("one.yaml", {.num_ranks = 1, .ranks_per_host = 1});
  one.profile.provenance.machine = "NVIDIA-H200-x1";
  one.profile.provenance.date = "2026-02-01T00:00:00Z";
  one.profile.device_memory_bytes = 123;
  // One rank makes no communicators, so it says nothing of them.
  four.profile.memory_overhead = {
      .process = 5, .first_communicator = 7, .communicator = 3};
  one.profile.memory_overhead = {.process = 6};
  const HardwareProfile merged = MustMerge({four, one}).profile;
  EXPECT_EQ(merged.provenance.machine, "NVIDIA-H200-x4");
  EXPECT_EQ(merged.provenance.num_ranks, 4);
  EXPECT_EQ(merged.ranks_per_host, 4);
  EXPECT_THAT(merged.compute_contention, ElementsAre(1, 1.5, 2, 2.5));
  EXPECT_EQ(merged.device_memory_bytes, 123);
  EXPECT_EQ(merged.memory_overhead,
            (MemoryOverhead{
                .process = 6, .first_communicator = 7, .communicator = 3}));
  EXPECT_EQ(merged.communication.size(), four.profile.communication.size());
}

// Goal: profiles that contradict each other are refused, by file and key.
// Method: one contradiction at a time.
TEST(ProfileMergeTest, RefusesContradictions) {
  const ProfilePart a = Part("a.yaml");
  const auto error_with = [&](auto change) {
    ProfilePart b = Part("b.yaml");
    change(b.profile);
    return ErrorOf({a, b});
  };
  EXPECT_THAT(
      error_with([](HardwareProfile& b) { b.provenance.machine = "other"; }),
      HasSubstr("provenance.machine is made-up in a.yaml and other in b.yaml"));
  EXPECT_THAT(error_with([](HardwareProfile& b) {
                b.precision = Precision::kBfloat16;
              }),
              HasSubstr("precision is fp32 in a.yaml and bf16 in b.yaml"));
  EXPECT_THAT(error_with([](HardwareProfile& b) {
                b.provenance.threads_per_device = 2;
              }),
              HasSubstr("provenance.threads_per_device is 1 in a.yaml and 2 in "
                        "b.yaml"));
  EXPECT_THAT(
      error_with([](HardwareProfile& b) { b.provenance.date = "yesterday"; }),
      AllOf(HasSubstr("b.yaml: provenance.date"), HasSubstr("'yesterday'")));
  ProfilePart sheet = DataSheet("sheet.yaml"), other = DataSheet("other.yaml");
  other.profile.device.name = "chop";
  EXPECT_THAT(ErrorOf({sheet, other}),
              HasSubstr("device.name is chip in sheet.yaml and chop in"));
  other = DataSheet("other.yaml");
  other.profile.device.memory_bytes_per_s = 2e12;
  EXPECT_THAT(ErrorOf({sheet, other}),
              AllOf(HasSubstr("device is 100 multiprocessors"),
                    HasSubstr("1e+12 bytes/s in sheet.yaml"),
                    HasSubstr("2e+12 bytes/s in other.yaml")));
  // A data sheet whose device the measured profile does not name.
  EXPECT_THAT(ErrorOf({a, sheet}), HasSubstr("provenance.machine"));
  EXPECT_THAT(ErrorOf({a}), HasSubstr("at least two profiles"));
}

// Goal: tables measured in parts plan as if measured together, after writing
// and reading too. Method: a profile whose rows, shuffled, are dealt to two
// parts, some to both, and each part's plan beside a merge with itself.
TEST(ProfileMergeTest, PlansAsItsPartsDo) {
  const JobSpec job = SmallJob();
  const auto plan_with = [&](const HardwareProfile& profile) {
    const absl::StatusOr<CostModel> cost = CostModel::Create(profile);
    EXPECT_TRUE(cost.ok()) << cost.status();
    const auto plan = FindPlan({.job = job, .num_devices = 4}, *cost);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return std::make_pair(LayoutToString(plan->layout),
                          plan->prediction.step_time_s);
  };
  const ProfilePart whole = Part("whole.yaml", {.contention_per_rank = 0.25});
  ProfilePart a = whole, b = whole;
  std::mt19937 random(5);
  const auto deal = [&](auto& rows, auto& to_a, auto& to_b) {
    to_a.clear();
    to_b.clear();
    for (const auto& row : rows) {
      const auto who = random() % 3;
      if (who != 0) to_a.push_back(row);
      if (who != 1) to_b.push_back(row);
    }
  };
  deal(whole.profile.gemms, a.profile.gemms, b.profile.gemms);
  deal(whole.profile.communication, a.profile.communication,
       b.profile.communication);
  a.profile.attention.pop_back();
  b.profile.bandwidth.pop_back();
  ASSERT_LT(a.profile.gemms.size(), whole.profile.gemms.size());
  ASSERT_LT(b.profile.gemms.size(), whole.profile.gemms.size());
  const HardwareProfile merged = MustMerge({a, b}).profile;
  EXPECT_EQ(merged.gemms.size(), whole.profile.gemms.size());
  const auto expected = plan_with(whole.profile);
  EXPECT_EQ(plan_with(merged).first, expected.first);
  EXPECT_NEAR(plan_with(merged).second, expected.second,
              1e-9 * expected.second);
  EXPECT_EQ(plan_with(MustMerge({whole, whole}).profile), expected);

  const std::string yaml = ProfileToYaml(merged);
  const absl::StatusOr<HardwareProfile> read = ParseProfile(yaml, "merged");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(ProfileToYaml(*read), yaml);
  EXPECT_EQ(plan_with(*read), plan_with(merged));
}

}  // namespace
}  // namespace millrace
