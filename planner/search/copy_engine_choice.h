// Whether a plan uses copy engines: resources.transport and what was measured.

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

// All that copy engines can do of each.
void UseCopyEngines(std::vector<Layout>* layouts);

// Of a plan that was predicted by instructions with NCCL alone: changes its
// layout, prediction, timeline and hashes to those with copy engines if that is
// the choice. Errors as PredictLayout's.
absl::Status ChooseCopyEngines(const JobSpec& job, const CostModel& cost,
                               Plan* plan);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_SEARCH_COPY_ENGINE_CHOICE_H_
