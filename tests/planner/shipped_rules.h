// The rules of tests/data/published_runs/ for tests, read once.

#ifndef MILLRACE_TESTS_PLANNER_SHIPPED_RULES_H_
#define MILLRACE_TESTS_PLANNER_SHIPPED_RULES_H_

#include "gtest/gtest.h"
#include "planner/evaluate/run_rules.h"

namespace millrace {

inline const RunRules& ShippedRules() {
  static const auto* const rules = [] {
    const absl::StatusOr<RunRules> loaded =
        LoadRunRules("tests/data/published_runs");
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return new RunRules(loaded.ok() ? *loaded : RunRules{});
  }();
  return *rules;
}

}  // namespace millrace

#endif  // MILLRACE_TESTS_PLANNER_SHIPPED_RULES_H_
