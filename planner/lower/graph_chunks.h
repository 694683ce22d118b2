// Interleaves the ops of several chunks of a micro-batch's tokens, so that the
// communication of one chunk runs while products of other chunks compute. The
// ops treat each token alone: product, reduce-scatter, norm, gather, product.
// The method is that of "Wang et al., Overlap Communication with Dependent
// Computation via Decomposition in Large Deep Learning Models, 2023", but over
// several ops.
//
// Tensor rank r of n holds the r-th n-th of every chunk, so that a gathered
// chunk has the next tokens of the micro-batch, in their order, and whoever
// reads all of them sees what it would see unchunked. What is summed over a
// rank's tokens, gradients of norms, has other terms on each rank: the sum over
// ranks is the same up to rounding.
//
// Internal to planner/lower/graph*.

#ifndef MILLRACE_PLANNER_LOWER_GRAPH_CHUNKS_H_
#define MILLRACE_PLANNER_LOWER_GRAPH_CHUNKS_H_

#include <vector>

#include "planner/lower/graph.h"

namespace millrace {

// `chains[c]`: ops of chunk c, each of which reads what the one before writes;
// chunks are independent of each other. Returns all in one order that keeps
// that of each chain. An op behind communication comes once `num_products`
// products were begun after that communication was asked for, as long as there
// are any that can be; a norm then comes first, for others wait for what
// follows it.
std::vector<GraphOp> InterleaveChunks(std::vector<std::vector<GraphOp>> chains,
                                      int num_products);

// For InterleaveChunks: copies go on beside one product and are done with it;
// a kernel of NCCL waits for the one under way and goes on beside the next.
int NumProductsBesideChunks(const Layout& layout);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_LOWER_GRAPH_CHUNKS_H_
