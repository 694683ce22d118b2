#include "planner/profile/profile_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/planner/profile_fixture.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

HardwareProfile SmallProfile() {
  HardwareProfile profile = MakeProfile({.num_ranks = 2, .ranks_per_host = 2});
  profile.name = "small \"quoted\"\n";
  profile.compute_contention = {1, 1.7};
  return profile;
}

std::string ErrorOf(const std::string& from, const std::string& to) {
  const std::string yaml = ProfileToYaml(SmallProfile());
  const std::string changed = absl::StrReplaceAll(yaml, {{from, to}});
  EXPECT_NE(yaml, changed) << from;
  const auto profile = ParseProfile(changed, "p.yaml");
  return profile.ok() ? "no error" : std::string(profile.status().message());
}

// Goal: a cached profile is the measured one, to the last bit. Method: random
// seconds, written and read back; the text must repeat exactly.
TEST(ProfileFileTest, RoundTrips) {
  std::mt19937_64 random(3);
  std::uniform_real_distribution<double> exponent(-9, 2);
  for (int round = 0; round < 20; ++round) {
    HardwareProfile profile = SmallProfile();
    for (GemmTime& time : profile.gemms) {
      time.seconds = std::pow(10, exponent(random));
    }
    profile.launch_overhead_s = std::pow(10, exponent(random));
    profile.attention[0].window = round;  // Zero is left out.
    profile.attention[0].is_float8 = round % 2 == 1;
    const std::string yaml = ProfileToYaml(profile);
    const auto read = ParseProfile(yaml, "p.yaml");
    ASSERT_TRUE(read.ok()) << read.status() << yaml;
    EXPECT_EQ(ProfileToYaml(*read), yaml);
    ASSERT_EQ(read->gemms.size(), profile.gemms.size());
    EXPECT_EQ(read->gemms[5].seconds, profile.gemms[5].seconds);
    EXPECT_EQ(read->attention[0].window, round);
    EXPECT_EQ(absl::StrContains(yaml, "window: "), round > 0);
    EXPECT_EQ(read->attention[0].is_float8, round % 2 == 1);
    EXPECT_EQ(absl::StrContains(yaml, "float8: true"), round % 2 == 1);
    EXPECT_EQ(read->launch_overhead_s, profile.launch_overhead_s);
    EXPECT_EQ(read->name, profile.name);
    EXPECT_EQ(read->communication.back().kind, OpKind::kSend);
    EXPECT_EQ(read->compute_contention, profile.compute_contention);
  }
}

// Goal: a profile says what it computed in, and older ones, which do not, were
// of fp32. Method: write, leave out, and misspell.
TEST(ProfileFileTest, KeepsThePrecision) {
  HardwareProfile profile = SmallProfile();
  profile.precision = Precision::kBfloat16;
  const std::string yaml = ProfileToYaml(profile);
  EXPECT_EQ(ParseProfile(yaml, "p.yaml")->precision, Precision::kBfloat16);
  const auto older = ParseProfile(
      absl::StrReplaceAll(yaml, {{"precision: bf16\n", ""}}), "p.yaml");
  ASSERT_TRUE(older.ok()) << older.status();
  EXPECT_EQ(older->precision, Precision::kFloat32);
  EXPECT_THAT(ErrorOf("precision: fp32", "precision: fp16"),
              HasSubstr("precision: expected fp32 or bf16, found 'fp16'"));
}

// Goal: what overlap costs is kept, is one where a file does not say it, and is
// no gain.
TEST(ProfileFileTest, KeepsOverlapFactors) {
  HardwareProfile profile = SmallProfile();
  EXPECT_EQ(ProfileToYaml(profile).find("overlap"), std::string::npos);
  profile.overlap = {.compute = 1.0625, .communication = 4.5, .waits = true};
  profile.copy_engine_overlap = {.compute = 1.125, .communication = 1.25};
  const auto again = ParseProfile(ProfileToYaml(profile), "profile.yaml");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->overlap, profile.overlap);
  EXPECT_EQ(again->copy_engine_overlap, profile.copy_engine_overlap);
  for (auto [member, key] : {std::pair{&HardwareProfile::overlap, "overlap"},
                             std::pair{&HardwareProfile::copy_engine_overlap,
                                       "copy_engine_overlap"}}) {
    HardwareProfile wrong = profile;
    (wrong.*member).compute = 0.5;
    const auto refused = ParseProfile(ProfileToYaml(wrong), "profile.yaml");
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(refused.status().message()),
                HasSubstr(absl::StrCat(key, ": expected factors")));
  }
}

// Goal: times of copy engines are kept, and there are none where a file does
// not say them.
TEST(ProfileFileTest, KeepsCopyEngineTimes) {
  HardwareProfile profile = SmallProfile();
  EXPECT_EQ(ProfileToYaml(profile).find("copy_engines"), std::string::npos);
  profile.copy_engines = {{{.kind = OpKind::kSend,
                            .group_size = 2,
                            .bytes = 4096,
                            .seconds = 1e-5}},
                          {{.kind = OpKind::kAllGather,
                            .group_size = 4,
                            .bytes = 8192,
                            .seconds = 2e-5}}};
  const auto again = ParseProfile(ProfileToYaml(profile), "profile.yaml");
  ASSERT_TRUE(again.ok()) << again.status();
  ASSERT_EQ(again->copy_engines.size(), 2u);
  EXPECT_EQ(again->copy_engines[1].kind, OpKind::kAllGather);
  EXPECT_EQ(again->copy_engines[1].group_size, 4);
  EXPECT_EQ(again->copy_engines[1].bytes, 8192);
  EXPECT_EQ(again->copy_engines[1].seconds, 2e-5);
  EXPECT_EQ(again->communication.size(), profile.communication.size());
}

// Goal: memory beside the arenas is kept, and is none where a file does not say
// it.
TEST(ProfileFileTest, KeepsMemoryOverhead) {
  HardwareProfile profile = SmallProfile();
  EXPECT_EQ(ProfileToYaml(profile).find("memory_overhead"), std::string::npos);
  profile.memory_overhead = {
      .process = 5, .first_communicator = 7, .communicator = 3};
  const auto again = ParseProfile(ProfileToYaml(profile), "profile.yaml");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->memory_overhead, profile.memory_overhead);
}

// Goal: the way to the host is kept, and is not known where a file does not say
// it; a rate below zero is refused. Method: there and back.
TEST(ProfileFileTest, KeepsTheHostLink) {
  HardwareProfile profile = SmallProfile();
  EXPECT_EQ(ProfileToYaml(profile).find("host_link"), std::string::npos);
  profile.host_link = {.to_host_bytes_per_s = 5e10, .source = "measured"};
  const std::string yaml = ProfileToYaml(profile);
  const auto again = ParseProfile(yaml, "profile.yaml");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->host_link, profile.host_link);
  const auto below =
      ParseProfile(absl::StrReplaceAll(yaml, {{"5e+10", "-5e+10"}}), "p.yaml");
  EXPECT_THAT(std::string(below.status().message()),
              HasSubstr("to_host_bytes_per_s"));
}

// Goal: what one GPU alone measures is read again: no communicators, no tables
// of communication, no copy engines. Method: such a profile, there and back;
// bytes below zero are still refused.
TEST(ProfileFileTest, KeepsWhatOneRankMeasures) {
  HardwareProfile profile = SmallProfile();
  profile.provenance.num_ranks = 1;
  profile.ranks_per_host = 1;
  profile.compute_contention = {1.0};
  profile.communication.clear();
  profile.memory_overhead = {.process = int64_t{535} << 20};
  const std::string yaml = ProfileToYaml(profile);
  const auto again = ParseProfile(yaml, "measured profile");
  ASSERT_TRUE(again.ok()) << again.status() << yaml;
  EXPECT_EQ(again->memory_overhead, profile.memory_overhead);
  EXPECT_TRUE(again->communication.empty());
  EXPECT_EQ(ProfileToYaml(*again), yaml);
  const auto below = ParseProfile(
      absl::StrReplaceAll(
          yaml, {{"first_communicator: 0", "first_communicator: -1"}}),
      "p.yaml");
  EXPECT_THAT(std::string(below.status().message()),
              HasSubstr("expected an integer of at least 0, found '-1'"));
}

HardwareProfile TunedProfile() {
  HardwareProfile profile = SmallProfile();
  profile.tuning = {
      .device = "NVIDIA H200",
      .machine = "NVIDIA-H200-x1",
      .version = "0.1.0",
      .date = "2026-11-22T01:00:00Z",
      .command = "millrace profile --tune \"my job\".yaml",
      .kernels = {{.family = "norm_forward",
                   .shape_class = "layer=0 residual=1 vectors=512 cached=0",
                   .choice = "threads=256",
                   .seconds = 1.298e-4,
                   .start_seconds = 1.306e-4},
                  {.family = "swiglu_forward",
                   .shape_class = "cached=0",
                   .choice = "threads=128",
                   .seconds = 1e-6,
                   .start_seconds = 1e-6}},
      .products = {{.shape = "m8192n8192k8192-tb",
                    .algorithm = "cublaslt/130100/18.1",
                    .seconds = 1.4e-3}}};
  return profile;
}

// Goal: tuned choices are kept with where they came from, and are none where a
// file does not say them. Method: write and read; without products; without.
TEST(ProfileFileTest, KeepsTuning) {
  EXPECT_EQ(ProfileToYaml(SmallProfile()).find("tuning"), std::string::npos);
  HardwareProfile profile = TunedProfile();
  for (const bool with_products : {true, false}) {
    if (!with_products) profile.tuning.products.clear();
    const std::string yaml = ProfileToYaml(profile);
    const auto again = ParseProfile(yaml, "p.yaml");
    ASSERT_TRUE(again.ok()) << again.status() << yaml;
    EXPECT_EQ(again->tuning, profile.tuning);
    EXPECT_EQ(ProfileToYaml(*again), yaml);
  }
  profile.tuning = {};
  const auto untuned = ParseProfile(ProfileToYaml(profile), "p.yaml");
  ASSERT_TRUE(untuned.ok()) << untuned.status();
  EXPECT_FALSE(untuned->tuning.is_given());
}

// Goal: what is wrong in a tuning is named with line and key. Method: one wrong
// text at a time; the line is that of the text.
TEST(ProfileFileTest, RefusesWrongTuning) {
  const std::string yaml = ProfileToYaml(TunedProfile());
  const auto error_of = [&](const std::string& from, const std::string& to) {
    const std::string changed = absl::StrReplaceAll(yaml, {{from, to}});
    EXPECT_NE(yaml, changed) << from;
    const auto profile = ParseProfile(changed, "p.yaml");
    return profile.ok() ? "no error" : std::string(profile.status().message());
  };
  const auto line_of = [&](const std::string& text) {
    const size_t at = yaml.find(text);
    return absl::StrCat(
        "p.yaml:", 1 + std::count(yaml.begin(), yaml.begin() + at, '\n'), ": ");
  };
  EXPECT_THAT(error_of("threads=256", "threads=many"),
              HasSubstr(absl::StrCat(line_of("threads=256"),
                                     "tuning.kernels[0].choice: expected words "
                                     "NAME=INTEGER, found 'threads=many'")));
  EXPECT_THAT(error_of("residual=1 vectors", "residual vectors"),
              HasSubstr("tuning.kernels[0].class: expected words"));
  EXPECT_THAT(
      error_of("  device: \"NVIDIA H200\"\n", ""),
      HasSubstr(absl::StrCat(line_of("tuning:"), "tuning.device: missing")));
  EXPECT_THAT(error_of("\"NVIDIA-H200-x1\"", "\"\""),
              HasSubstr(absl::StrCat(line_of("tuning:"),
                                     "tuning: expected device, machine")));
  EXPECT_THAT(error_of("seconds: 0.0014", "seconds: -1"),
              HasSubstr("tuning.products[0].seconds: expected a number, 0 or "
                        "from 1e-12 to 1e+06"));
  EXPECT_THAT(error_of("algorithm:", "algorythm:"),
              HasSubstr("did you mean 'algorithm'?"));
  HardwareProfile twice = TunedProfile();
  twice.tuning.products.push_back(twice.tuning.products[0]);
  const auto refused = ParseProfile(ProfileToYaml(twice), "p.yaml");
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("tuning.products[1]: m8192n8192k8192-tb is given "
                        "twice"));
}

// A machine known by its data sheet alone.
HardwareProfile DataSheetProfile() {
  HardwareProfile profile;
  profile.name = "sheet";
  profile.provenance = {.machine = "data sheet",
                        .version = "0.1.0",
                        .date = "2026-01-01T00:00:00Z",
                        .num_ranks = 1,
                        .threads_per_device = 1};
  profile.ranks_per_host = 2;
  profile.device_memory_bytes = int64_t{1} << 36;
  profile.device = {.name = "D",
                    .multiprocessors = 100,
                    .bf16_flops_per_s = 1e15,
                    .fp8_flops_per_s = 2e15,
                    .memory_bytes_per_s = 3e12,
                    .source = "the \"sheet\""};
  profile.network = {{.name = "link",
                      .devices = 2,
                      .bytes_per_s = 4e11,
                      .latency_s = 1e-6,
                      .source = "sheet"},
                     {.name = "fabric", .bytes_per_s = 5e10}};
  profile.constants = {{.name = "c", .value = 0.75, .source = "a paper"}};
  profile.step_error = {
      .low = 0.9, .high = 1.25, .num_runs = 12, .source = "runs"};
  return profile;
}

// Goal: a profile without a table is whole where device and network are given,
// is kept as it is, and means no contention. Method: write and read; then leave
// out one of the two sections.
TEST(ProfileFileTest, KeepsDataSheets) {
  const std::string yaml = ProfileToYaml(DataSheetProfile());
  const auto again = ParseProfile(yaml, "p.yaml");
  ASSERT_TRUE(again.ok()) << again.status() << yaml;
  EXPECT_EQ(again->device, DataSheetProfile().device);
  EXPECT_EQ(again->network, DataSheetProfile().network);
  EXPECT_EQ(again->constants, DataSheetProfile().constants);
  EXPECT_EQ(again->step_error, DataSheetProfile().step_error);
  EXPECT_THAT(again->compute_contention, ElementsAre(1, 1));
  EXPECT_TRUE(again->gemms.empty());

  HardwareProfile turned = DataSheetProfile();
  std::swap(turned.step_error.low, turned.step_error.high);
  EXPECT_THAT(
      std::string(
          ParseProfile(ProfileToYaml(turned), "p.yaml").status().message()),
      HasSubstr("step_error: expected 0 < low <= high"));

  HardwareProfile neither = DataSheetProfile();
  neither.network.clear();
  const auto refused = ParseProfile(ProfileToYaml(neither), "p.yaml");
  EXPECT_THAT(std::string(refused.status().message()),
              AllOf(HasSubstr("p.yaml"), HasSubstr("compute_contention")));
}

// Goal: tables stay beside a data sheet. Method: add one to a measured profile.
TEST(ProfileFileTest, KeepsTablesBesideDataSheets) {
  HardwareProfile profile = SmallProfile();
  profile.device = DataSheetProfile().device;
  profile.network = DataSheetProfile().network;
  const auto again = ParseProfile(ProfileToYaml(profile), "p.yaml");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->gemms.size(), profile.gemms.size());
  EXPECT_EQ(ProfileToYaml(*again), ProfileToYaml(profile));
}

// Goal: links that cannot be are refused with what they should be. Method: one
// wrong level at a time.
TEST(ProfileFileTest, RefusesWrongNetworks) {
  auto error_of = [](const HardwareProfile& profile) {
    return std::string(
        ParseProfile(ProfileToYaml(profile), "p.yaml").status().message());
  };
  HardwareProfile profile = DataSheetProfile();
  profile.network[0].devices = 0;
  EXPECT_THAT(error_of(profile), HasSubstr("network[0].devices: expected"));
  profile = DataSheetProfile();
  profile.network[1].devices = 3;
  EXPECT_THAT(error_of(profile), HasSubstr("a multiple of the 2"));
  profile = DataSheetProfile();
  profile.network[1].bytes_per_s = 0;
  EXPECT_THAT(error_of(profile), HasSubstr("network[1].bytes_per_s"));
  profile = DataSheetProfile();
  profile.device = {};
  EXPECT_THAT(error_of(profile), HasSubstr("missing"));
}

// Goal: constants that would make times infinite, or of which one would be
// passed over, are refused; hiding nothing is not. Method: one wrong list at a
// time.
TEST(ProfileFileTest, RefusesWrongConstants) {
  auto error_of = [](const std::vector<ModelConstant>& constants) {
    HardwareProfile profile = DataSheetProfile();
    profile.constants = constants;
    return std::string(
        ParseProfile(ProfileToYaml(profile), "p.yaml").status().message());
  };
  const ModelConstant good = {
      .name = "gemm_share", .value = 0.7, .source = "s"};
  EXPECT_THAT(
      error_of({{.name = "gemm_share", .value = 0, .source = "s"}}),
      HasSubstr("gemm_share: expected more than 0, 1 at most, found 0"));
  EXPECT_THAT(error_of({{.name = "gemm_share", .value = 1.7, .source = "s"}}),
              HasSubstr("found 1.7"));
  EXPECT_THAT(
      error_of({{.name = "data_hidden_share", .value = 2, .source = "s"}}),
      HasSubstr("data_hidden_share: expected 0 to 1, found 2"));
  EXPECT_THAT(error_of({good, good}),
              HasSubstr("gemm_share is given twice; remove one"));
  EXPECT_EQ(error_of({good,
                      {.name = "data_hidden_share", .value = 0, .source = "s"},
                      {.name = "step_s", .value = 0, .source = "s"}}),
            "");
}

// Goal: a damaged or foreign file is refused with the place. Method: one change
// at a time.
TEST(ProfileFileTest, RefusesWrongFiles) {
  EXPECT_THAT(
      ErrorOf("ranks_per_host: 2", "ranks_per_hots: 2"),
      AllOf(HasSubstr("ranks_per_host: missing; expected an integer of at "
                      "least 1"),
            HasSubstr("did you mean 'ranks_per_host'?"), HasSubstr("p.yaml:")));
  EXPECT_THAT(ErrorOf("ranks_per_host: 2", "ranks_per_host: 2000000000"),
              HasSubstr("p.yaml:1: ranks_per_host: expected 1024 at most"));
  EXPECT_THAT(ErrorOf("ranks_per_host: 2", "ranks_per_host: 3"),
              HasSubstr("compute_contention: expected ranks_per_host = 3"));
  EXPECT_THAT(ErrorOf("m: 32", "m: 0"),
              HasSubstr("gemms[0].m: expected an integer of at least 1, "
                        "found '0'"));
  EXPECT_THAT(ErrorOf("m: 32", "m: 32, m: 32"), HasSubstr("given twice"));
  EXPECT_THAT(ErrorOf("trans_a: false", "trans_a: no"),
              HasSubstr("expected true or false"));
  EXPECT_THAT(ErrorOf("launch_overhead_s: 1e-06", "launch_overhead_s: -1"),
              HasSubstr("a number, 0 or from 1e-12 to 1e+06, found '-1'"));
  EXPECT_THAT(ErrorOf("launch_overhead_s: 1e-06", "launch_overhead_s: nan"),
              HasSubstr("found 'nan'"));
  EXPECT_THAT(ErrorOf(OpKindName(OpKind::kAllReduce), "all_reduc"),
              HasSubstr("unknown op kind 'all_reduc'; did you mean"));
  EXPECT_THAT(ErrorOf("machine: \"made-up\"", "machine: \"\""),
              HasSubstr("provenance: expected machine"));
  EXPECT_THAT(
      ErrorOf("compute_contention: [1, 1.7]", "compute_contention: [1, x]"),
      HasSubstr("numbers, 0 or from 1e-15 to 1e+15, found 'x'"));
  EXPECT_FALSE(ParseProfile("", "p.yaml").ok());
  EXPECT_FALSE(ParseProfile("[", "p.yaml").ok());
  EXPECT_FALSE(LoadProfile("no/such/profile.yaml").ok());
}

// Goal: numbers that no machine leaves are refused by line and key, before sums
// and quotients of them become infinite. Method: a time, a rate and a factor,
// each too large and too small.
TEST(ProfileFileTest, RefusesAbsurdNumbers) {
  for (const char* value : {"1e308", "1e-320", "inf", "1e7", "1e-13"}) {
    const std::string error = ErrorOf(
        "launch_overhead_s: 1e-06", absl::StrCat("launch_overhead_s: ", value));
    EXPECT_THAT(error, HasSubstr("p.yaml:"));
    EXPECT_THAT(error,
                HasSubstr(absl::StrCat("launch_overhead_s: expected a number, "
                                       "0 or from 1e-12 to 1e+06, found '",
                                       value, "'")));
  }
  for (const char* value : {"1e308", "1e-320"}) {
    EXPECT_THAT(ErrorOf("compute_contention: [1, 1.7]",
                        absl::StrCat("compute_contention: [1, ", value, "]")),
                HasSubstr("compute_contention: expected numbers, 0 or from"));
  }
}

// Goal: caches of different machines and jobs never collide on a name that no
// file system takes. Method: an awkward fingerprint.
TEST(ProfileFileTest, NamesTheCache) {
  ASSERT_EQ(setenv("XDG_CACHE_HOME", "/cache", 1), 0);
  const ProfileIdentity identity{.machine = "AMD EPYC/2 cores",
                                 .shape = "h256-b16",
                                 .num_ranks = 4,
                                 .threads_per_device = 1};
  const auto path = DefaultProfilePath(identity);
  ASSERT_TRUE(path.ok()) << path.status();
  EXPECT_EQ(*path,
            "/cache/millrace/profiles/AMD_EPYC_2_cores-h256-b16-ranks4-"
            "threads1.yaml");
  ASSERT_EQ(unsetenv("XDG_CACHE_HOME"), 0);
  ASSERT_EQ(setenv("HOME", "/home/someone", 1), 0);
  EXPECT_THAT(*DefaultProfilePath(identity),
              HasSubstr("/home/someone/.cache/millrace/profiles/"));
  ASSERT_EQ(unsetenv("HOME"), 0);
  EXPECT_EQ(DefaultProfilePath(identity).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(ProfileFileTest, SavesIntoNewFolders) {
  const std::string path =
      absl::StrCat(::testing::TempDir(), "/profiles_", getpid(), "/a/p.yaml");
  ASSERT_TRUE(SaveProfile(SmallProfile(), path).ok());
  const auto read = LoadProfile(path);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(ProfileToYaml(*read), ProfileToYaml(SmallProfile()));
}

// Goal: planning finds what was measured here for the same model, at any number
// of ranks. Method: a cache with own, other-shaped and other files.
TEST(ProfileFileTest, ListsTheCache) {
  const std::string cache =
      absl::StrCat(::testing::TempDir(), "/cache_", getpid());
  ASSERT_EQ(setenv("XDG_CACHE_HOME", cache.c_str(), 1), 0);
  ProfileIdentity identity{.machine = "here", .shape = "h64-b8"};
  EXPECT_THAT(CachedProfilePaths(identity), IsEmpty());
  std::vector<std::string> saved;
  for (const int32_t num_ranks : {2, 4}) {
    identity.num_ranks = num_ranks;
    saved.push_back(*DefaultProfilePath(identity));
    ASSERT_TRUE(SaveProfile(SmallProfile(), saved.back()).ok());
  }
  ProfileIdentity other = identity;
  other.shape = "h64-b80";
  ASSERT_TRUE(SaveProfile(SmallProfile(), *DefaultProfilePath(other)).ok());
  EXPECT_EQ(CachedProfilePaths(identity), saved);
  ASSERT_EQ(unsetenv("XDG_CACHE_HOME"), 0);
}

// Goal: a plan made with figures of another setting says so. Method: each
// difference alone, and none.
TEST(ProfileFileTest, WarnsOfForeignAndStale) {
  const HardwareProfile profile = SmallProfile();
  const ProfileIdentity own{
      .machine = "made-up", .num_ranks = 2, .threads_per_device = 1};
  EXPECT_THAT(ProfileWarnings(profile, own), IsEmpty());
  ProfileIdentity other = own;
  other.machine = "another";
  EXPECT_THAT(ProfileWarnings(profile, other),
              ElementsAre(HasSubstr("foreign profile")));
  other = own;
  other.num_ranks = 4;
  other.threads_per_device = 2;
  EXPECT_THAT(ProfileWarnings(profile, other),
              ElementsAre(HasSubstr("measured with 2 ranks, planned for 4"),
                          HasSubstr("1 threads a device, planned for 2")));
}

// Goal: docs/profile.md explains every key. Method: each key that the writer
// writes must be named there.
TEST(ProfileFileTest, DocumentationMatches) {
  std::ifstream file("docs/profile.md");
  ASSERT_TRUE(file) << "run from the repository's root";
  std::stringstream text;
  text << file.rdbuf();
  std::stringstream yaml(absl::StrCat(ProfileToYaml(SmallProfile()),
                                      ProfileToYaml(TunedProfile()),
                                      ProfileToYaml(DataSheetProfile())));
  std::string word;
  int num_keys = 0;
  while (yaml >> word) {
    while (!word.empty() && (word.front() == '{' || word.front() == '-')) {
      word.erase(0, 1);
    }
    if (word.size() < 2 || word.back() != ':' || word.front() == '"') continue;
    word.pop_back();
    ++num_keys;
    EXPECT_THAT(text.str(), HasSubstr(absl::StrCat("`", word, "`"))) << word;
  }
  EXPECT_GT(num_keys, 25);
}

}  // namespace
}  // namespace millrace
