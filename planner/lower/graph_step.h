// The ops that run once a step: reduction of gradients, norm, optimizer.
// Internal to planner/lower/graph*.

#ifndef MILLRACE_PLANNER_LOWER_GRAPH_STEP_H_
#define MILLRACE_PLANNER_LOWER_GRAPH_STEP_H_

#include "planner/lower/graph_builder.h"

namespace millrace {

// Zeroes the loss and the squared norm, to which the step adds. The worker sets
// the other scalars before the step.
void EmitZeroScalars(GraphBuilder& builder);

// Sums the step's scalars over the world, so that all ranks act alike.
void EmitReduceScalars(GraphBuilder& builder);

// Under ZeRO-1 each rank has its own slices of the parameters alone between
// steps: gathers every bucket, on the data lane, in the order in which the
// forward pass then waits for them.
void EmitGatherParameters(GraphBuilder& builder);

// master -> parameters, of every bucket.
void EmitCastParameters(GraphBuilder& builder);

// Fills the prologue's and epilogue's optimizer part and reduce_by_bucket.
void EmitOptimizer(GraphBuilder& builder);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_LOWER_GRAPH_STEP_H_
