#include "worker/agent/restart_budget.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

// Goal: a coordinator that dies without any step in between is started again a
// few times, each time later, and then no more. Method: deaths at one progress.
TEST(RestartBudgetTest, EndsWithoutProgress) {
  RestartBudget budget;
  absl::Duration last = absl::Seconds(-1);
  absl::Duration total = absl::ZeroDuration();
  for (int i = 0; i < RestartBudget::kMaxRestartsWithoutProgress; ++i) {
    const std::optional<absl::Duration> wait = budget.OnDeath(7);
    ASSERT_TRUE(wait.has_value()) << i;
    EXPECT_GT(*wait, last);
    last = *wait;
    total += *wait;
  }
  EXPECT_FALSE(budget.OnDeath(7).has_value());
  EXPECT_LE(total, absl::Seconds(5));  // Workers and agents wait for longer.
}

// Goal: deaths with steps in between cost nothing, however many. Method: a
// hundred of them, with the number of steps growing.
TEST(RestartBudgetTest, ProgressRenewsIt) {
  RestartBudget budget;
  for (int64_t progress = 1; progress <= 100; ++progress) {
    EXPECT_EQ(budget.OnDeath(progress), absl::ZeroDuration());
  }
  EXPECT_GT(budget.OnDeath(100), absl::ZeroDuration());
  EXPECT_EQ(budget.OnDeath(101), absl::ZeroDuration());
}

}  // namespace
}  // namespace millrace
