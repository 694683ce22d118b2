// Adds to a pass the ops that sharded parameters and gradients need: parameter
// gathers (ZeRO-3) and zeroing of gradient padding (ZeRO-2 and 3). Internal to
// planner/lower/graph*.

#ifndef MILLRACE_PLANNER_LOWER_GRAPH_SHARDS_H_
#define MILLRACE_PLANNER_LOWER_GRAPH_SHARDS_H_

#include <vector>

#include "planner/lower/graph_builder.h"

namespace millrace {

// ZeRO-3: gathers each bucket of `whole_buckets` (one of Graph::sharded) that
// ops of the pass read, in the order in which they do, one bucket ahead: when
// the bucket before it comes into use, and no more than two are whole at once.
// Buckets that the pass reads all along are gathered first.
void InsertParameterGathers(GraphBuilder& builder,
                            const std::vector<TensorId>& whole_buckets,
                            std::vector<GraphOp>* pass);

// ZeRO-2 and 3: zeroes whole buckets of gradients before their first use where
// they have padding, which the reduction reads and nothing writes.
void InsertGradientZeroing(GraphBuilder& builder, std::vector<GraphOp>* pass);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_LOWER_GRAPH_SHARDS_H_
