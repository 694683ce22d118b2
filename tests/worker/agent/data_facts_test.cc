#include "worker/agent/data_facts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "base/files.h"

namespace millrace {
namespace {

// Goal: an evaluation set's token file that cannot be looked at is an error
// that names it, never a fingerprint that another such host would share.
// Method: an index without its tokens, then with them, and with more of them.
TEST(DataFactsTest, NeedsTheTokensOfEvaluationSets) {
  const std::string folder =
      testing::TempDir() + "/millrace-facts-" + std::to_string(getpid());
  ASSERT_TRUE(MakeDirectories(folder).ok());
  const std::string prefix = folder + "/held-out";
  ASSERT_TRUE(WriteFileAtomically(prefix + ".idx", "index").ok());
  PreparedJobData data;
  data.evaluation.push_back({.name = "held_out", .prefixes = {prefix}});
  const absl::Status missing = FactsOf(data).status();
  EXPECT_TRUE(absl::IsNotFound(missing)) << missing;
  EXPECT_THAT(std::string(missing.message()),
              testing::HasSubstr(prefix + ".bin"));
  ASSERT_TRUE(WriteFileAtomically(prefix + ".bin", "tokens").ok());
  const auto first = FactsOf(data);
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_TRUE(WriteFileAtomically(prefix + ".bin", "more tokens").ok());
  EXPECT_NE(FactsOf(data)->evaluation(), first->evaluation());
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace millrace
