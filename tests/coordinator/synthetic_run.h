// A run directory as docs/run_directory.md describes it, made up: two pipeline
// stages of real Programs with invented times.

#ifndef MILLRACE_TESTS_COORDINATOR_SYNTHETIC_RUN_H_
#define MILLRACE_TESTS_COORDINATOR_SYNTHETIC_RUN_H_

#include <string>
#include <vector>

#include "planner/job/job.h"
#include "planner/profile/profile.h"
#include "planner/search/plan.h"
#include "planner/simulate/timeline.h"

namespace millrace {

// 60 training steps on 4 ranks, steps 31 to 35 twice because a worker died.
// `directory` must not exist. CHECKs that every file could be written.
void WriteSyntheticRun(const std::string& directory);

// The plan of that run, and the step that it predicts.
struct SyntheticPlan {
  JobSpec job;
  HardwareProfile profile;
  Plan plan;
  Timeline timeline;
  std::vector<std::string> program_texts;  // By stage.
};
SyntheticPlan MakeSyntheticPlan();

}  // namespace millrace

#endif  // MILLRACE_TESTS_COORDINATOR_SYNTHETIC_RUN_H_
