#include "worker/doctor/findings.h"

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/units.h"
#include "gtest/gtest.h"
#include "worker/doctor/pair_findings.h"
#include "worker/doctor/report_text.h"

namespace millrace {
namespace {

HostFacts HealthyHost(int32_t agent_idx) {
  HostFacts facts;
  facts.agent_idx = agent_idx;
  facts.host = absl::StrCat("node", agent_idx + 1);
  facts.host_identity = facts.host;
  facts.build_id = "d7fae63bdeb01234";
  facts.version = "1.0";
  facts.processor = "Some processor";
  facts.cores = 16;
  facts.memory_bytes = 64 * kGiB;
  facts.open_files = 1024;
  facts.locked_memory_bytes = kUnlimited;
  facts.processes = 4096;
  facts.devices = 2;
  return facts;
}

ExaminationResult HealthyHosts(int32_t num_hosts) {
  ExaminationResult result;
  for (int32_t i = 0; i < num_hosts; ++i) {
    result.hosts.push_back(HealthyHost(i));
  }
  return result;
}

RailFacts GoodRail(int32_t from, int32_t to) {
  return {.from = from,
          .to = to,
          .own_interface = "eth0",
          .interface = "eth0",
          .address = absl::StrCat("10.0.0.", to + 1),
          .there_bytes_s = 1.25e9,
          .back_bytes_s = 1.25e9,
          .round_trip_s = 50e-6};
}

// The only finding.
Finding OnlyFinding(const ExaminationResult& result) {
  const std::vector<Finding> findings = FindingsOf(result);
  EXPECT_EQ(findings.size(), 1u) << ReportText(result, findings);
  return findings.empty() ? Finding() : findings[0];
}

TEST(MajorityTest, IsWhatMostHaveAndTheFirstOfEquals) {
  EXPECT_EQ(MajorityOf({"b", "a", "a"}), "a");
  EXPECT_EQ(MajorityOf({"b", "a"}), "b");
  EXPECT_EQ(MajorityOf({"c", "b", "a", "a", "b"}), "b");
  EXPECT_EQ(MajorityOf({}), "");
}

TEST(FindingsTest, HealthyHostsHaveNone) {
  ExaminationResult result = HealthyHosts(3);
  for (const auto& [from, to] : {std::pair(0, 1), {0, 2}, {1, 2}}) {
    result.rails.push_back(GoodRail(from, to));
  }
  EXPECT_TRUE(FindingsOf(result).empty());
  EXPECT_TRUE(absl::StrContains(ReportText(result, {}), "3 hosts: all well"));
}

// Goal: one line a deviation, with host, value, the majority's and advice.
TEST(FindingsTest, NamesTheHostThatDeviates) {
  ExaminationResult result = HealthyHosts(4);
  result.hosts[2].build_id = "0123456789abcdef";
  const Finding build = OnlyFinding(result);
  EXPECT_EQ(build.severity, Severity::kFailure);
  EXPECT_EQ(build.host, "node3");
  EXPECT_EQ(build.text,
            "build of millrace: 0123456789ab (1.0), others have d7fae63bdeb0 "
            "(1.0); put the same program on all hosts");

  result = HealthyHosts(4);
  result.hosts[1].driver = "570.1";
  const Finding driver = OnlyFinding(result);
  EXPECT_EQ(driver.severity, Severity::kWarning);
  EXPECT_EQ(driver.host, "node2");
}

// Goal: of two hosts with unlike limits, the lower is named; a limit above the
// others' is no deviation.
TEST(FindingsTest, LowerLimitsAreNamedAndHigherOnesAreNot) {
  ExaminationResult result = HealthyHosts(2);
  result.hosts[0].open_files = 512;
  const Finding low = OnlyFinding(result);
  EXPECT_EQ(low.severity, Severity::kWarning);
  EXPECT_EQ(low.host, "node1");
  EXPECT_TRUE(absl::StrContains(low.text, "512, others have 1024"));

  result = HealthyHosts(3);
  result.hosts[2].open_files = 1 << 20;
  EXPECT_TRUE(FindingsOf(result).empty());
}

// Goal: a bucket that cannot be used fails, and a host that is far slower than
// others is named. Method: three hosts, of which one deviates; all travel as
// JSON.
TEST(FindingsTest, BucketsAreUsableAndAboutAsFast) {
  ExaminationResult result = HealthyHosts(3);
  for (HostFacts& host : result.hosts) {
    host.buckets.push_back({.path = "s3://models/run7",
                            .request_s = 3e-3,
                            .write_bytes_s = 100e6,
                            .read_bytes_s = 200e6});
  }
  EXPECT_TRUE(FindingsOf(result).empty());
  EXPECT_TRUE(absl::StrContains(ReportText(result, {}),
                                "bucket s3://models/run7, an object of 8.00 "
                                "MiB on each host at the same time:\n"));
  result.hosts[2].buckets[0].read_bytes_s = 20e6;
  const Finding slow = OnlyFinding(result);
  EXPECT_EQ(slow.severity, Severity::kWarning);
  EXPECT_EQ(slow.host, "node3");
  EXPECT_TRUE(absl::StrContains(slow.text, "reads 19.1 MiB/s, others do 191 "))
      << slow.text;
  result.hosts[2].buckets[0].error = "no credentials; set them";
  const Finding failed = OnlyFinding(result);
  EXPECT_EQ(failed.severity, Severity::kFailure);
  EXPECT_EQ(failed.text, "bucket s3://models/run7: no credentials; set them");
  const absl::StatusOr<HostFacts> copy =
      HostFactsFromJson(ToJson(result.hosts[2]));
  ASSERT_TRUE(copy.ok()) << copy.status();
  ASSERT_EQ(copy->buckets.size(), 1u);
  EXPECT_EQ(copy->buckets[0].error, "no credentials; set them");
  EXPECT_EQ(copy->buckets[0].write_bytes_s, 100e6);
}

// Goal: a limit that a job of these hosts exceeds fails, though all share it.
TEST(FindingsTest, TooFewOpenFilesFail) {
  ExaminationResult result = HealthyHosts(2);
  for (HostFacts& host : result.hosts) host.open_files = 70;
  const std::vector<Finding> findings = FindingsOf(result);
  ASSERT_EQ(findings.size(), 2u);
  EXPECT_TRUE(WouldFail(findings));
}

TEST(FindingsTest, FoldersFailWhereTheyCannotBeWrittenOrAreFull) {
  ExaminationResult result = HealthyHosts(2);
  result.hosts[0].folders = {{.purpose = kRunFolder,
                              .path = "/runs",
                              .free_bytes = 10 * kGiB,
                              .total_bytes = 20 * kGiB}};
  result.hosts[1].folders = {{.purpose = kRunFolder,
                              .path = "/runs",
                              .free_bytes = kMiB,
                              .total_bytes = 20 * kGiB}};
  const Finding full = OnlyFinding(result);
  EXPECT_EQ(full.host, "node2");
  EXPECT_EQ(full.severity, Severity::kFailure);
  result.hosts[1].folders[0] = {
      .purpose = kRunFolder, .path = "/runs", .error = "cannot be written: no"};
  EXPECT_EQ(OnlyFinding(result).severity, Severity::kFailure);
}

// Goal: a folder that is not shared is told of to a job that would use it, and
// fails none.
TEST(FindingsTest, TellsOfCheckpointsOnOwnDisks) {
  ExaminationResult result = HealthyHosts(2);
  for (HostFacts& host : result.hosts) {
    host.folders = {{.purpose = kCheckpointFolder,
                     .path = "/ckpt",
                     .free_bytes = 10 * kGiB,
                     .total_bytes = 20 * kGiB,
                     .probed = true,
                     .sees_probe = host.agent_idx == 0}};
  }
  EXPECT_TRUE(FindingsOf(result).empty());
  result.needs.shared_checkpoints = true;
  const Finding blind = OnlyFinding(result);
  EXPECT_EQ(blind.host, "node2");
  EXPECT_EQ(blind.severity, Severity::kWarning);
  EXPECT_TRUE(absl::StrContains(blind.text, "/ckpt of node1"));
}

GpuFacts HealthyGpu() {
  GpuFacts gpu;
  gpu.name = "NVIDIA H200";
  gpu.memory_bytes = 141 * kGiB;
  gpu.used_bytes = kGiB;
  gpu.temperature_c = 40;
  gpu.slowdown_c = 95;
  gpu.power_limit_mw = 700'000;
  gpu.max_clock_mhz = 1980;
  gpu.throttle_reasons = 1;  // Idle.
  gpu.ecc_enabled = 1;
  gpu.uncorrected_errors = 0;
  gpu.remap_pending = 0;
  gpu.remap_failed = 0;
  gpu.nvlinks = 18;
  gpu.active_nvlinks = 18;
  return gpu;
}

ExaminationResult HostsWithGpus() {
  ExaminationResult result = HealthyHosts(2);
  for (HostFacts& host : result.hosts) {
    host.gpus = {HealthyGpu(), HealthyGpu()};
    host.driver = "580.1";
    host.nccl = "2.28";
  }
  return result;
}

// Goal: each sign of a sick GPU is found, with its host and index. Method: one
// sign at a time on one of four GPUs.
TEST(FindingsTest, SickGpusAreNamed) {
  EXPECT_TRUE(FindingsOf(HostsWithGpus()).empty());
  struct Sign {
    int64_t GpuFacts::*field;
    int64_t value;
    Severity severity;
    const char* words;
  };
  const std::vector<Sign> signs = {
      {&GpuFacts::temperature_c, 92, Severity::kWarning, "92 degrees"},
      {&GpuFacts::power_limit_mw, 500'000, Severity::kWarning,
       "power limit 500 W, others have 700 W"},
      {&GpuFacts::max_clock_mhz, 1200, Severity::kWarning, "1200 MHz"},
      {&GpuFacts::throttle_reasons, 0x40, Severity::kWarning, "heat"},
      {&GpuFacts::uncorrected_errors, 3, Severity::kWarning, "3 uncorrected"},
      {&GpuFacts::remap_pending, 1, Severity::kFailure, "reset the GPU"},
      {&GpuFacts::remap_failed, 1, Severity::kFailure, "replace the GPU"},
      {&GpuFacts::active_nvlinks, 17, Severity::kWarning, "17 of 18 NVLinks"},
      {&GpuFacts::compute_mode, 2, Severity::kFailure, "prohibits"},
      {&GpuFacts::used_bytes, 100 * kGiB, Severity::kWarning, "in use"},
      {&GpuFacts::ecc_enabled, 0, Severity::kWarning, "ECC 0"},
  };
  for (const Sign& sign : signs) {
    ExaminationResult result = HostsWithGpus();
    result.hosts[1].gpus[1].*sign.field = sign.value;
    const Finding found = OnlyFinding(result);
    EXPECT_EQ(found.host, "node2");
    EXPECT_EQ(found.severity, sign.severity) << found.text;
    EXPECT_TRUE(absl::StartsWith(found.text, "GPU 1: ")) << found.text;
    EXPECT_TRUE(absl::StrContains(found.text, sign.words)) << found.text;
  }
}

TEST(FindingsTest, UnlikeNcclFailsWhereGpusAreUsed) {
  ExaminationResult result = HostsWithGpus();
  result.hosts[1].nccl = "2.18";
  EXPECT_EQ(OnlyFinding(result).severity, Severity::kFailure);
  result.needs.gpus = false;
  EXPECT_EQ(OnlyFinding(result).severity, Severity::kWarning);
}

// Goal: the host whose clock is wrong is named, also when it is agent 0's.
TEST(FindingsTest, ClocksAreComparedWithTheMedian) {
  ExaminationResult result = HealthyHosts(3);
  result.rails = {GoodRail(0, 1), GoodRail(0, 2), GoodRail(1, 2)};
  result.rails[0].clock_offset_s = 3;
  result.rails[1].clock_offset_s = 3.001;
  const Finding wrong = OnlyFinding(result);
  EXPECT_EQ(wrong.host, "node1");
  EXPECT_TRUE(absl::StrContains(wrong.text, "slow")) << wrong.text;
  EXPECT_NEAR(ClockOffsets(result).at(0), -3, 1e-9);
}

TEST(FindingsTest, SlowWaysAreNamed) {
  ExaminationResult result = HealthyHosts(3);
  result.rails = {GoodRail(0, 1), GoodRail(0, 2), GoodRail(1, 2)};
  result.rails[1].back_bytes_s = 1.25e8;
  const Finding slow = OnlyFinding(result);
  EXPECT_EQ(slow.host, "node1");
  EXPECT_TRUE(absl::StrContains(
      slow.text, "to node3 over eth0: 1 Gbit/s back, others have 10 Gbit/s"))
      << slow.text;
}

// Goal: hosts must reach each other both ways, and the tried address is named.
TEST(FindingsTest, UnreachableHostsFail) {
  ExaminationResult result = HealthyHosts(2);
  result.reached = {
      {.from = 0, .to = 1, .interface = "eth0", .address = "10.0.0.2"},
      {.from = 1,
       .to = 0,
       .interface = "eth0",
       .address = "10.0.0.1",
       .error = "no answer in 3s"}};
  const Finding lost = OnlyFinding(result);
  EXPECT_EQ(lost.severity, Severity::kFailure);
  EXPECT_EQ(lost.host, "node2");
  EXPECT_TRUE(absl::StartsWith(
      lost.text, "does not reach node1 at 10.0.0.1 (no answer in 3s); "));
}

// Goal: a host that most others do not reach is one line, not one a pair.
TEST(FindingsTest, AHostThatIsCutOffIsOneLine) {
  ExaminationResult result = HealthyHosts(6);
  for (int32_t from = 0; from < 6; ++from) {
    for (int32_t to = 0; to < 6; ++to) {
      if (from == to) continue;
      const bool lost = (from == 2 || to == 2) && from + to != 2;
      result.reached.push_back({.from = from,
                                .to = to,
                                .address = absl::StrCat("10.0.0.", to + 1),
                                .error = lost ? "no answer in 3s" : ""});
      result.reached.push_back({.from = from,
                                .to = to,
                                .address = "172.17.0.1",
                                .error = "an address of this host too",
                                .led_elsewhere = true});
    }
  }
  const Finding cut_off = OnlyFinding(result);
  EXPECT_EQ(cut_off.host, "node3");
  EXPECT_TRUE(absl::StartsWith(
      cut_off.text,
      "is cut off from 4 hosts: for example, node2 does not reach node3 at "
      "10.0.0.3 (no answer in 3s); "))
      << cut_off.text;
}

// Goal: one address of several that only one host does not reach is a warning.
TEST(FindingsTest, AnAddressThatOneHostLacksIsAWarning) {
  ExaminationResult result = HealthyHosts(4);
  for (int32_t from = 1; from < 4; ++from) {
    result.reached.push_back({.from = from, .to = 0, .address = "10.0.0.1"});
    result.reached.push_back({.from = from,
                              .to = 0,
                              .interface = "eth1",
                              .address = "10.1.0.1",
                              .error = from == 3 ? "no answer in 3s" : ""});
  }
  const Finding lost = OnlyFinding(result);
  EXPECT_EQ(lost.severity, Severity::kWarning);
  EXPECT_EQ(lost.host, "node4");
  EXPECT_TRUE(absl::StrContains(lost.text, "10.1.0.1 of its eth1"));
}

// Goal: several processes of a host are one host, and are told apart by name.
TEST(FindingsTest, AgentsOfOneHost) {
  ExaminationResult result = HealthyHosts(3);
  result.hosts[1].host = result.hosts[1].host_identity = "node1";
  EXPECT_EQ(FirstAgents(result.hosts), (std::vector<size_t>{0, 2}));
  result.hosts[1].open_files = 900;
  EXPECT_EQ(OnlyFinding(result).host, "node1, agent 1");
  // A failure of both is said once.
  result.hosts[1].open_files = 1024;
  result.hosts[0].failures = result.hosts[1].failures = {"no data"};
  EXPECT_EQ(OnlyFinding(result).host, "node1, agent 0");
}

TEST(ReportTest, HasTablesFindingsAndAVerdict) {
  ExaminationResult result = HealthyHosts(3);
  result.rails = {GoodRail(0, 1), GoodRail(0, 2), GoodRail(1, 2)};
  result.hosts[2].open_files = 100;
  result.hosts[1].build_id = "other";
  const std::vector<Finding> findings = FindingsOf(result);
  const std::string text = ReportText(result, findings);
  for (const char* words :
       {"host   agents  cores", "node3", "unlimited",
        "3 ways between hosts, each over one TCP connection; median 10 Gbit/s, "
        "round trip 50.0 us, the slowest first:",
        "FAILS    node2: build of millrace", "warning  node3: open files",
        "3 hosts: a job would fail; 1 reason and 1 warning"}) {
    EXPECT_TRUE(absl::StrContains(text, words)) << words << "\n" << text;
  }
  const nlohmann::json json = ReportJson(result, findings);
  EXPECT_TRUE(json["would_fail"].get<bool>());
  EXPECT_EQ(json["hosts"].size(), 3u);
  EXPECT_EQ(json["rails"].size(), 3u);
}

// Goal: facts survive the way from host to host, and another build's do too.
TEST(HostFactsTest, TravelAsJson) {
  HostFacts facts = HealthyHost(3);
  facts.gpus = {HealthyGpu()};
  facts.folders = {{.purpose = kRunFolder, .path = "/runs", .probed = true}};
  facts.addresses = {{.interface = "eth0", .address = "10.0.0.4"}};
  facts.warnings = {"a sentence"};
  nlohmann::json json = ToJson(facts);
  const absl::StatusOr<HostFacts> read = HostFactsFromJson(json);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(ToJson(*read), json);
  json.erase("cores");
  json["unknown"] = "of a later build";
  EXPECT_TRUE(HostFactsFromJson(json).ok());
  json["gpus"] = "none";
  EXPECT_FALSE(HostFactsFromJson(json).ok());
  json["gpus"] = nlohmann::json::array({{{"name", 3}}});
  EXPECT_FALSE(HostFactsFromJson(json).ok());
}

}  // namespace
}  // namespace millrace
