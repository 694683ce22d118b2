#include "base/check.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

// Goal: a broken invariant stops the program and says which and where. Method:
// death tests on the message.
TEST(CheckDeathTest, PrintsConditionPlaceAndMessage) {
  const int num_ranks = 3;
  EXPECT_DEATH(
      CHECK(num_ranks % 2 == 0) << "ranks: " << num_ranks,
      "check_test.cc:[0-9]+: CHECK failed: num_ranks % 2 == 0 ranks: 3");
}

// Goal: a healthy CHECK costs its condition once and nothing else. Method:
// count evaluations of the condition and of the message.
TEST(CheckTest, EvaluatesConditionOnceAndMessageNever) {
  int num_conditions = 0;
  int num_messages = 0;
  const auto message = [&] { return ++num_messages; };
  CHECK(++num_conditions == 1) << message();
  EXPECT_EQ(num_conditions, 1);
  EXPECT_EQ(num_messages, 0);
}

// Goal: CHECK is one statement, so it nests under if and else. Method: use it
// there; a dangling else would change which branch runs.
TEST(CheckTest, IsOneStatement) {
  bool took_else = false;
  if (took_else)
    CHECK(false) << "unreachable";
  else
    took_else = true;
  EXPECT_TRUE(took_else);
}

}  // namespace
}  // namespace millrace
