// Variants of the fastest layouts that were simulated by instructions: list
// scheduling and copy engines.

#ifndef MILLRACE_PLANNER_SEARCH_VARIANTS_H_
#define MILLRACE_PLANNER_SEARCH_VARIANTS_H_

#include <cstdint>
#include <stop_token>
#include <vector>

#include "absl/status/status.h"
#include "planner/cost/op_cost.h"
#include "planner/job/job.h"
#include "planner/job/layout_space.h"
#include "planner/profile/profile.h"
#include "planner/search/finalist.h"
#include "planner/search/instruction_finalists.h"

namespace millrace {

// Whether layouts use copy engines: never, always, or where they are faster.
enum class CopyEngineChoice { kNever, kAlways, kIfFaster };

// kNever without GPUs. kIfFaster where the job leaves it open and the profile
// has times of copy engines.
CopyEngineChoice CopyEngineChoiceOf(const ResourceSpec& resources,
                                    const HardwareProfile& profile);

// Adds list-scheduled variants of the fastest pipelines, priced by
// instructions, unless even without a bubble a pipeline would be slower than
// the fastest layout. Does nothing if the job asks for another schedule.
// `memory_limit`: bytes of a device. Errors are those of lowering; Cancelled
// once a stop is requested.
absl::Status AddListScheduled(const LayoutSpace& space, const CostModel& cost,
                              int64_t memory_limit, const std::stop_token& stop,
                              InstructionFinalists* pricer,
                              std::vector<Finalist>* finalists);

// Adds variants of the fastest layouts with the largest use of copy engines
// that they allow, priced by instructions, where copy engines then carry
// anything. Errors are those of lowering.
absl::Status AddCopyEngines(const ModelSpec& model, const CostModel& cost,
                            InstructionFinalists* pricer,
                            std::vector<Finalist>* finalists);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_SEARCH_VARIANTS_H_
