#include "worker/cuda/nccl/nccl_version.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

// Goal: the boundaries of every range, and texts that name the version at hand
// and one to use instead.
TEST(NcclVersionTest, RefusesOldVersionsAndWarnsOfUnsafeOnes) {
  for (const int fit : {21801, 22509, 22802, 22809, 22902, 23007}) {
    const auto warning = CheckNcclVersion(fit);
    ASSERT_TRUE(warning.ok()) << warning.status();
    EXPECT_THAT(*warning, IsEmpty()) << fit;
  }
  for (const int unsafe : {22803, 22805, 22807, 22808}) {
    const auto warning = CheckNcclVersion(unsafe);
    ASSERT_TRUE(warning.ok()) << warning.status();
    EXPECT_THAT(*warning, AllOf(HasSubstr(NcclVersionName(unsafe)),
                                HasSubstr("Use 2.28.9 or later")));
  }
  for (const int old : {21705, 21212, 2804}) {
    const auto refusal = CheckNcclVersion(old);
    EXPECT_TRUE(absl::IsFailedPrecondition(refusal.status()));
    EXPECT_THAT(std::string(refusal.status().message()),
                AllOf(HasSubstr(NcclVersionName(old)),
                      HasSubstr("Use 2.18.1 at least")));
  }
}

TEST(NcclVersionTest, ReadsBothKindsOfCodes) {
  EXPECT_EQ(NcclVersionName(22809), "2.28.9");
  EXPECT_EQ(NcclVersionName(23007), "2.30.7");
  EXPECT_EQ(NcclVersionName(2804), "2.8.4");
}

}  // namespace
}  // namespace millrace
