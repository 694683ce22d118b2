// The ops of one layer, and of the two ends of a model, for one micro-batch on
// one rank: the forward pass, what the backward pass recomputes, and the
// backward pass. A Style chooses the ops where frameworks differ. Programs are
// lowered from these lists (planner/lower), and the closed form prices them
// (planner/cost).

#ifndef MILLRACE_PLANNER_GRAPH_LAYER_GRAPH_H_
#define MILLRACE_PLANNER_GRAPH_LAYER_GRAPH_H_

#include <cstdint>
#include <vector>

#include "planner/graph/style.h"
#include "planner/layout/layout.h"
#include "planner/layout/model.h"
#include "planner/program/ops.h"
#include "planner/program/program.h"

namespace millrace {

enum class LayerKind : uint8_t { kDense, kExperts };
LayerKind KindOfLayer(const ModelSpec& model, int64_t layer);

struct LayerOp {
  OpKind kind;
  // kForward, kRecompute, kInputGradient or kWeightGradient.
  Phase phase;
  // Its kernels belong to a CUDA graph of the layer, so the host does not
  // launch them one by one.
  bool in_graph = false;
  // Kernels. Zero for work that another op's kernel does besides its own.
  int32_t launches = 1;
  OpAttributes attributes;
};

struct LayerGraph {
  // The forward pass in order, then what is recomputed in order, then the
  // backward pass from the last op to the first.
  std::vector<LayerOp> ops;
  // The bytes that the forward pass of one micro-batch keeps for the backward
  // pass.
  int64_t activation_bytes = 0;
  // The most bytes that live only while the layer is computed or recomputed.
  int64_t working_bytes = 0;
};

// `layout` must pass ValidatePlannedLayout() (planner/cost/layer_work.h). The
// layer recomputes what Layout::recompute says.
LayerGraph GraphOfLayer(const ModelSpec& model, const Layout& layout,
                        LayerKind kind, const Implementation& style);
// The embedding, and its sum over the tensor axis.
LayerGraph GraphOfEmbedding(const ModelSpec& model, const Layout& layout,
                            const Implementation& style);
// The final norm, the head and the loss.
LayerGraph GraphOfHead(const ModelSpec& model, const Layout& layout,
                       const Implementation& style);

// Bytes of the residual stream of one micro-batch that a rank hands to the next
// stage.
double StreamBytes(const ModelSpec& model, const Layout& layout,
                   const Implementation& style);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_GRAPH_LAYER_GRAPH_H_
