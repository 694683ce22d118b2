// How the frameworks of published runs compute, where their rows do not say.

#ifndef MILLRACE_PLANNER_EVALUATE_FRAMEWORK_RULES_H_
#define MILLRACE_PLANNER_EVALUATE_FRAMEWORK_RULES_H_

#include <cstdint>
#include <string>

#include "planner/cost/layer_work.h"
#include "planner/evaluate/published_runs.h"
#include "planner/layout/layout.h"

namespace millrace {

struct FrameworkRule {
  const char* group_prefix;  // Of PublishedRun::group.
  const char* framework;     // With the reason for what follows.
  Implementation implementation;
  int32_t zero = 0;                        // Where the row does not say.
  Recompute recompute = Recompute::kNone;  // Where the row does not say.
  bool ties_embedding = false;             // Of GELU models.
  // Entries of GELU models' vocabularies where the row does not say; the last
  // that tensor ranks do not divide are left out.
  int64_t vocab = 51200;
  // Measured memory is what rank 0 logs of itself, so the first stage's, which
  // need not be the fullest.
  bool logs_first_rank = false;
  // And what the allocator has reserved, this many times what it handed out.
  double reserved_per_allocated = 1;
};

// The rule of the run's group. Groups that no rule names compute as
// Megatron-Core does; `is_known` is then false.
struct FrameworkChoice {
  const FrameworkRule* rule;
  bool is_known;
};
FrameworkChoice FrameworkOf(const PublishedRun& run);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_EVALUATE_FRAMEWORK_RULES_H_
