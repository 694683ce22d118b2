// How Megatron-Bridge's published runs of mixtures of experts were configured:
// what its performance summary leaves out and the recipes that it was measured
// with say (NVIDIA-NeMo/Megatron-Bridge, scripts/performance/configs of v0.2.0
// to v0.5.0, released with the containers 25.11 to 26.06).

#ifndef MILLRACE_PLANNER_EVALUATE_BRIDGE_RECIPES_H_
#define MILLRACE_PLANNER_EVALUATE_BRIDGE_RECIPES_H_

#include "planner/evaluate/published_runs.h"
#include "planner/evaluate/run_setup.h"

namespace millrace {

// Sets how tokens are exchanged, what is a CUDA graph, whether experts multiply
// in one kernel and, where the row does not say, what is computed again; and
// says so in `assumptions`. Runs that no recipe is for stay as they are.
// `setup` must have its layout.
void ApplyBridgeRecipe(const PublishedRun& run, RunSetup* setup);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_EVALUATE_BRIDGE_RECIPES_H_
