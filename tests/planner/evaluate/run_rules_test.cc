#include "planner/evaluate/run_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "tests/planner/shipped_rules.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kOneFramework[] =
    "fallback: ours\n"
    "rate_with_row_scales: 0.5\n"
    "frameworks:\n"
    "  ours: {groups: [ours], says: ours}\n";

// A fresh folder of this test.
std::string RulesFolder(const std::string& name) {
  const std::string folder = absl::StrCat(testing::TempDir(), "/rules_", name);
  std::filesystem::remove_all(folder);
  EXPECT_TRUE(MakeDirectories(folder).ok());
  return folder;
}

// Goal: a file beside the runs counts, and the one that comes with Millrace
// where there is none. Method: runs beside one of the two files.
TEST(RunRulesTest, LooksBesideTheRunsFirst) {
  const std::string folder = RulesFolder("beside");
  const std::string runs = folder + "/runs.json";
  const auto shipped = LoadRulesBeside(runs);
  ASSERT_TRUE(shipped.ok()) << shipped.status();
  EXPECT_EQ(shipped->frameworks.frameworks.size(),
            ShippedRules().frameworks.frameworks.size());

  ASSERT_TRUE(
      WriteFileAtomically(folder + "/frameworks.yaml", kOneFramework).ok());
  const auto own = LoadRulesBeside(runs);
  ASSERT_TRUE(own.ok()) << own.status();
  EXPECT_EQ(own->frameworks.frameworks.size(), 1u);
  EXPECT_EQ(own->models.models.size(), ShippedRules().models.models.size());
}

// Goal: a folder that is named must have both files, and a mistake in one is
// named by file and line. Method: leave one out, then spoil it.
TEST(RunRulesTest, NamesTheFileThatIsWrong) {
  const std::string folder = RulesFolder("wrong");
  EXPECT_THAT(LoadRunRules(folder).status().message(),
              HasSubstr(folder + "/frameworks.yaml"));
  ASSERT_TRUE(
      WriteFileAtomically(folder + "/frameworks.yaml", kOneFramework).ok());
  EXPECT_THAT(LoadRunRules(folder).status().message(),
              HasSubstr(folder + "/models.yaml"));
  ASSERT_TRUE(WriteFileAtomically(folder + "/models.yaml", "models: 3\n").ok());
  EXPECT_THAT(LoadRunRules(folder).status().message(),
              AllOf(HasSubstr(folder + "/models.yaml:1: models: "),
                    HasSubstr("expected a list, found '3'")));
}

// Goal: profiles that rows can have are told from others. Method: a device's,
// a framework's, and one that is measured here.
TEST(RunRulesTest, KnowsTheProfilesOfRuns) {
  EXPECT_TRUE(IsProfileOfRuns(ShippedRules(), "h100-sxm"));
  EXPECT_TRUE(IsProfileOfRuns(ShippedRules(), "a100-80gb-100g"));
  EXPECT_FALSE(IsProfileOfRuns(ShippedRules(), "mine"));
}

}  // namespace
}  // namespace millrace
