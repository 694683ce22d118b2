// Seeds of simulated jobs, and a check of a job that has finished.

#ifndef MILLRACE_TESTS_SIM_SEEDS_H_
#define MILLRACE_TESTS_SIM_SEEDS_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <vector>

#include "absl/strings/str_join.h"
#include "tests/sim/cluster.h"
#include "tests/sweep.h"

namespace millrace {

// MILLRACE_SIM_SEED=N replays one seed. MILLRACE_SIM_TIMES=N tries N times as
// many.
inline std::vector<uint64_t> Seeds(uint64_t count) {
  if (const char* seed = std::getenv("MILLRACE_SIM_SEED")) {
    return {std::strtoull(seed, nullptr, 10)};
  }
  if (const char* times = std::getenv("MILLRACE_SIM_TIMES")) {
    count *= std::strtoull(times, nullptr, 10);
  }
  std::vector<uint64_t> seeds;
  for (uint64_t seed = 1; seed <= count; seed += SweepStep(13)) {
    seeds.push_back(seed);
  }
  return seeds;
}

inline void ExpectFinished(const ClusterOptions& options,
                           const Cluster& cluster) {
  EXPECT_TRUE(cluster.violations().empty())
      << absl::StrJoin(cluster.violations(), "\n");
  ASSERT_TRUE(cluster.end().has_value());
  EXPECT_EQ(cluster.end()->verdict, Verdict::kFinished)
      << cluster.end()->reason;
  EXPECT_EQ(cluster.end()->steps, options.num_steps);
}

}  // namespace millrace

#endif  // MILLRACE_TESTS_SIM_SEEDS_H_
