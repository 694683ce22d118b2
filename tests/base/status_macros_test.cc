#include "base/status_macros.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace millrace {
namespace {

absl::StatusOr<std::unique_ptr<int>> Half(int value) {
  if (value % 2 != 0) return absl::InvalidArgumentError("odd");
  return std::make_unique<int>(value / 2);
}

absl::StatusOr<int> Quarter(int value) {
  ASSIGN_OR_RETURN(const std::unique_ptr<int> half, Half(value));
  ASSIGN_OR_RETURN(const std::unique_ptr<int> quarter, Half(*half));
  return *quarter;
}

absl::Status RunTwice(const absl::Status& first, const absl::Status& second,
                      int* num_passed) {
  RETURN_IF_ERROR(first);
  ++*num_passed;
  RETURN_IF_ERROR(second);
  ++*num_passed;
  return absl::OkStatus();
}

// Goal: values, also move-only ones, come through; errors return at once with
// their code and message. Method: fail in the first, the second and no call.
TEST(StatusMacrosTest, AssignOrReturnMovesValuesAndReturnsErrors) {
  ASSERT_TRUE(Quarter(12).ok());
  EXPECT_EQ(*Quarter(12), 3);
  EXPECT_EQ(Quarter(3).status(), absl::InvalidArgumentError("odd"));
  EXPECT_EQ(Quarter(6).status(), absl::InvalidArgumentError("odd"));
}

// Goal: the first error ends the function, and nothing after it runs.
TEST(StatusMacrosTest, ReturnIfErrorStopsAtTheFirstError) {
  const absl::Status broken = absl::DataLossError("torn");
  int num_passed = 0;
  EXPECT_EQ(RunTwice(broken, absl::OkStatus(), &num_passed), broken);
  EXPECT_EQ(num_passed, 0);
  EXPECT_EQ(RunTwice(absl::OkStatus(), broken, &num_passed), broken);
  EXPECT_EQ(num_passed, 1);
  EXPECT_TRUE(RunTwice(absl::OkStatus(), absl::OkStatus(), &num_passed).ok());
  EXPECT_EQ(num_passed, 3);
}

}  // namespace
}  // namespace millrace
