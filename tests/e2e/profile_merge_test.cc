#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/files.h"
#include "planner/profile/profile_file.h"
#include "tests/e2e/job_process.h"
#include "tests/planner/profile_fixture.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class ProfileMergeCommandTest : public ::testing::Test {
 protected:
  ProfileMergeCommandTest() : folder_("profile_merge") {}

  std::string Path(const std::string& name) const {
    return folder_.path + "/" + name;
  }
  std::string Save(const std::string& name, const HardwareProfile& profile) {
    EXPECT_TRUE(SaveProfile(profile, Path(name)).ok());
    return Path(name);
  }
  struct Result {
    int exit_code;
    std::string output;
  };
  Result Run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), MILLRACE_BINARY);
    JobProcess process(folder_, arguments);
    const int exit_code = process.Wait();
    return {exit_code, process.Output()};
  }

  const JobFolder folder_;
};

// Goal: the processor's kernels leave nothing to be tuned, and the command says
// so before it measures. Method: a job of backend cpu.
TEST_F(ProfileMergeCommandTest, RefusesToTuneForProcessors) {
  const Result result = Run({"profile", "--tune", WriteTinyJob(folder_, {})});
  EXPECT_EQ(result.exit_code, 2) << result.output;
  EXPECT_THAT(result.output, HasSubstr("resources.backend is cpu"));
}

// Goal: whoever asks for a measurement gets one, by one rank too, whatever
// profile the job names, and is told where it went; the named one stays as it
// is. Method: a job with a profile file; into a file, into the cache, and to
// places that are refused before anything is measured.
TEST_F(ProfileMergeCommandTest, MeasuresWhateverTheJobNames) {
  const std::string named = Save("named.yaml", MakeProfile({}));
  const std::string before = *ReadFile(named);
  const std::string job = WriteTinyJob(
      folder_, {.devices_per_agent = 1, .extra = "profile: " + named + "\n"});
  const std::string measured = Path("measured/here.yaml");
  Result result = Run({"profile", job, "--output", measured});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output,
              AllOf(HasSubstr("profile of this machine: " + measured),
                    HasSubstr("which names " + named + " so far")));
  const auto read = LoadProfile(measured);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_FALSE(read->gemms.empty());
  EXPECT_EQ(read->provenance.num_ranks, 1);
  EXPECT_EQ(*ReadFile(named), before);
  result = Run({"plan", job, "--profile", measured});
  EXPECT_EQ(result.exit_code, 0) << result.output;

  result = Run({"profile", job, "--output", "configs/hardware/mine.yaml"});
  EXPECT_EQ(result.exit_code, 2) << result.output;
  EXPECT_THAT(result.output, HasSubstr("never overwritten"));
  result = Run({"profile", job, "--output", folder_.path});
  EXPECT_EQ(result.exit_code, 2) << result.output;
  EXPECT_THAT(result.output, HasSubstr("is a folder"));
}

// Goal: the command writes a profile that plan takes, and warns of rows far
// apart. Method: two profiles with one product 30 % apart.
TEST_F(ProfileMergeCommandTest, WritesAProfileThatPlans) {
  HardwareProfile profile = MakeProfile({});
  const std::string a = Save("a.yaml", profile);
  profile.gemms[0].seconds *= 1.3;
  const std::string b = Save("b.yaml", profile);
  const std::string merged = Path("merged.yaml");
  const Result result = Run({"profile", "--merge", a, b, "--output", merged});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output,
              AllOf(HasSubstr("2 profiles of made-up joined; 12 products"),
                    HasSubstr("warning: gemm m 32 n 32 k 32: ")));
  const auto read = LoadProfile(merged);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_NEAR(read->gemms[0].seconds, profile.gemms[0].seconds * 2.3 / 2.6,
              1e-12);
  const Result plan = Run({"plan", WriteTinyJob(folder_, {}), "--profile",
                           merged, "--devices", "4"});
  EXPECT_EQ(plan.exit_code, 0) << plan.output;
}

// Goal: what cannot be merged is refused with the reason, and nothing is
// written. Method: contradicting profiles, a missing file, and options that do
// not go together.
TEST_F(ProfileMergeCommandTest, RefusesAndWritesNothing) {
  HardwareProfile profile = MakeProfile({});
  const std::string a = Save("a.yaml", profile);
  profile.provenance.machine = "another";
  const std::string b = Save("b.yaml", profile);
  const std::string merged = Path("merged.yaml");
  const struct {
    std::vector<std::string> arguments;
    std::string expected;
  } cases[] = {
      {{"--merge", a, b, "--output", merged}, "provenance.machine is made-up"},
      {{"--merge", a, Path("none.yaml"), "--output", merged}, "none.yaml"},
      {{"--merge", a, "--output", merged}, "--merge"},
      {{"--merge", a, a}, "--output"},
      {{"--output", merged}, "--merge"},
      {{}, "JOB"},
      {{"job.yaml", "--merge", a, a, "--output", merged}, "--merge"},
  };
  for (const auto& [arguments, expected] : cases) {
    std::vector<std::string> command = {"profile"};
    command.insert(command.end(), arguments.begin(), arguments.end());
    const Result result = Run(command);
    EXPECT_NE(result.exit_code, 0) << result.output;
    EXPECT_THAT(result.output, HasSubstr(expected));
    EXPECT_FALSE(std::filesystem::exists(merged));
  }
}

}  // namespace
}  // namespace millrace
