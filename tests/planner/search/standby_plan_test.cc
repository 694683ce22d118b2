#include "planner/search/standby_plan.h"

#include <gtest/gtest.h>

#include "base/units.h"

namespace millrace {
namespace {

JobSpec JobOn(const std::string& backend, const std::string& standby_workers) {
  JobSpec job;
  job.resources.backend = backend;
  job.fault.standby_workers = standby_workers;
  return job;
}

HardwareProfile ProfileOf(int64_t process, int64_t first_communicator) {
  HardwareProfile profile;
  profile.memory_overhead = {.process = process,
                             .first_communicator = first_communicator,
                             .communicator = 5 * kMiB};
  return profile;
}

// Goal: auto keeps standby processes exactly where the GPU has their memory
// left. Method: a byte too little and just enough; a profile that does not know
// the memory; CPUs.
TEST(StandbyPlanTest, AutoTakesMemoryThatIsLeft) {
  const JobSpec job = JobOn("cuda", "auto");
  const HardwareProfile profile = ProfileOf(kGiB, 3 * kGiB);
  EXPECT_EQ(StandbyBytes(job, profile), 4 * kGiB);
  EXPECT_EQ(MemoryBesideStandby(job, profile, 10 * kGiB), 10 * kGiB);
  EXPECT_TRUE(KeepsStandbys(job, profile, 6 * kGiB, 10 * kGiB));
  EXPECT_FALSE(KeepsStandbys(job, profile, 6 * kGiB + 1, 10 * kGiB));
  EXPECT_FALSE(KeepsStandbys(job, ProfileOf(0, 0), 0, 10 * kGiB));
  const JobSpec on_cpus = JobOn("cpu", "auto");
  EXPECT_EQ(StandbyBytes(on_cpus, profile), 0);
  EXPECT_FALSE(KeepsStandbys(on_cpus, profile, 0, 10 * kGiB));
}

// Goal: who asks for standby processes has them, and layouts do without their
// memory; who wants none has none. Method: both words, on GPUs and CPUs.
TEST(StandbyPlanTest, DoesWhatTheJobAsksFor) {
  const HardwareProfile profile = ProfileOf(kGiB, 3 * kGiB);
  const JobSpec always = JobOn("cuda", "always");
  EXPECT_EQ(MemoryBesideStandby(always, profile, 10 * kGiB), 6 * kGiB);
  EXPECT_TRUE(KeepsStandbys(always, profile, 6 * kGiB, 6 * kGiB));
  const JobSpec on_cpus = JobOn("cpu", "always");
  EXPECT_EQ(MemoryBesideStandby(on_cpus, profile, 10 * kGiB), 10 * kGiB);
  EXPECT_TRUE(KeepsStandbys(on_cpus, profile, 10 * kGiB, 10 * kGiB));
  const JobSpec never = JobOn("cuda", "never");
  EXPECT_EQ(MemoryBesideStandby(never, profile, 10 * kGiB), 10 * kGiB);
  EXPECT_FALSE(KeepsStandbys(never, profile, 0, 10 * kGiB));
}

}  // namespace
}  // namespace millrace
