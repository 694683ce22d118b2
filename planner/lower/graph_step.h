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

// Makes the parameters of a step whole. Those in 8 bits are made of the weights
// that the optimizer updates, each rank its slice. Under ZeRO-1 each rank has
// its own slices of the parameters alone between steps: gathers every bucket,
// on the data lane, in the order in which the forward pass then waits for them.
void EmitParameters(GraphBuilder& builder);

// The magnitudes of the matrices of buckets in 8 bits, in the rank's slices, on
// the compute lane. Returns -1 where there are no such buckets.
TensorId EmitWeightAmaxes(GraphBuilder& builder);
// Gathers these from the ranks that share a copy of the weights, and makes the
// rank's slices of the buckets of them.
void EmitQuantizeWeights(GraphBuilder& builder, TensorId amaxes);

// master -> parameters, of every bucket whose parameters are kept between
// steps.
void EmitCastParameters(GraphBuilder& builder);

// Fills the prologue's and epilogue's optimizer part and reduce_by_bucket.
void EmitOptimizer(GraphBuilder& builder);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_LOWER_GRAPH_STEP_H_
