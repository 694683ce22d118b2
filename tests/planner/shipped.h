// Hardware profiles of configs/hardware/ for tests, which name them.

#ifndef MILLRACE_TESTS_PLANNER_SHIPPED_H_
#define MILLRACE_TESTS_PLANNER_SHIPPED_H_

#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "planner/cost/op_cost.h"
#include "planner/profile/shipped_profiles.h"

namespace millrace {

inline HardwareProfile Shipped(const std::string& name) {
  const auto profile = LoadNamedProfile(name);
  EXPECT_TRUE(profile.ok()) << profile.status();
  return profile.ok() ? *profile : HardwareProfile{};
}

inline CostModel CostOf(const HardwareProfile& profile) {
  auto cost = CostModel::Create(profile);
  EXPECT_TRUE(cost.ok()) << cost.status();
  return *std::move(cost);
}

}  // namespace millrace

#endif  // MILLRACE_TESTS_PLANNER_SHIPPED_H_
