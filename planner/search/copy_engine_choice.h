// Chooses whether a plan uses copy engines, from the job's resources.transport
// and from measured times.

#ifndef MILLRACE_PLANNER_SEARCH_COPY_ENGINE_CHOICE_H_
#define MILLRACE_PLANNER_SEARCH_COPY_ENGINE_CHOICE_H_

#include <vector>

#include "absl/status/status.h"
#include "planner/cost/op_cost.h"
#include "planner/job/job.h"
#include "planner/layout/layout.h"
#include "planner/profile/profile.h"
#include "planner/search/plan.h"

namespace millrace {

enum class CopyEngineChoice { kNever, kAlways, kIfFaster };

// kNever without GPUs; kIfFaster where the job leaves it open and the profile
// has times of copy engines.
CopyEngineChoice CopyEngineChoiceOf(const ResourceSpec& resources,
                                    const HardwareProfile& profile);

// Gives each layout the largest use of copy engines that it allows.
void UseCopyEngines(std::vector<Layout>* layouts);

// `plan` must have been predicted by instructions with NCCL alone. Changes its
// layout, prediction, timeline and hashes to those with copy engines if that is
// the choice. Errors are PredictLayout's.
absl::Status ChooseCopyEngines(const JobSpec& job, const CostModel& cost,
                               Plan* plan);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_SEARCH_COPY_ENGINE_CHOICE_H_
