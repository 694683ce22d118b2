// The ops of one layer, and of the two ends of a model, for one micro-batch on
// one rank: the forward pass, what the backward pass recomputes, and the
// backward pass. An Implementation (style.h) chooses the ops where frameworks
// differ. Programs are lowered from these lists (planner/lower), and the closed
// form prices them (planner/cost).

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

// kGlobal is a dense layer without the window, in a model whose other layers
// have one. kStored* multiply what is stored, whatever Layout::gemm_format
// says.
enum class LayerKind : uint8_t {
  kDense,
  kExperts,
  kGlobal,
  kStoredDense,
  kStoredGlobal
};
inline constexpr size_t kNumLayerKinds =
    static_cast<size_t>(LayerKind::kStoredGlobal) + 1;
LayerKind KindOfLayer(const ModelSpec& model, int64_t layer);
// Each kind that some layer has, once.
std::vector<LayerKind> KindsOfLayers(const ModelSpec& model);

// A layer consists of two blocks. Each adds its output to the residual stream.
enum class LayerBlock : uint8_t { kAttention, kFeedForward };

// The purpose of an op in its block. Recompute and backward ops have that of
// their forward op.
enum class LayerStep : uint8_t {
  kNorm,
  kGather,      // The norm's output, over the tensor axis.
  kInner,       // The product of the gathered norm: query, key and value, or
                // gate and up.
  kRope,        // Rotary positions, in place.
  kAttend,      // Attention.
  kActivation,  // The feed-forward block's.
  kOuter,       // The product that gives the block's output.
  kReduce,      // Its sum over the tensor axis.
  kOutputNorm,  // The norm of the block's output.
  kOther,       // All else. Such steps are plan only, or of the model's ends.
};

struct LayerOp {
  OpKind kind;
  // kForward, kRecompute, kInputGradient or kWeightGradient.
  Phase phase;
  LayerBlock block = LayerBlock::kAttention;
  LayerStep step = LayerStep::kOther;
  // Its kernels belong to a CUDA graph of the layer, so the host does not
  // launch them one by one.
  bool in_graph = false;
  // Kernels. Zero for work that another op's kernel does besides its own.
  int32_t launches = 1;
  OpAttributes attributes;
};

struct LayerGraph {
  // The forward pass in order, then the blocks from the last to the first. For
  // each, first what its backward pass needs recomputed, in order, then its
  // backward ops from the last forward op to the first.
  std::vector<LayerOp> ops;
  // The bytes that the forward pass of one micro-batch keeps for the backward
  // pass.
  int64_t activation_bytes = 0;
  // The most bytes that live only while the layer is computed or recomputed.
  int64_t working_bytes = 0;
};

// The stream that a layer reads is the sum of its residual and of the output of
// the block before, which the layer's first norm adds. Where a stage starts
// there is no such output: the stream comes whole.
enum class StreamInput : uint8_t { kSum, kWhole };

// `layout` must pass ValidatePlannedLayout() (planner/cost/layer_work.h). The
// layer recomputes what Layout::recompute says.
LayerGraph GraphOfLayer(const ModelSpec& model, const Layout& layout,
                        LayerKind kind, const Implementation& style,
                        StreamInput input = StreamInput::kSum);
// The embedding, and its sum over the tensor axis.
LayerGraph GraphOfEmbedding(const ModelSpec& model, const Layout& layout,
                            const Implementation& style);
// The final norm, the head and the loss. Validation computes the loss alone, of
// one micro-batch at a time; its list then has no backward ops of the loss.
enum class LossUse : uint8_t { kTraining, kValidation };
LayerGraph GraphOfHead(const ModelSpec& model, const Layout& layout,
                       const Implementation& style,
                       LossUse use = LossUse::kTraining);

// Whether a layer or an end of the model needs an op that no worker executes,
// by our own style on one rank.
bool HasPlanOnlyOps(const ModelSpec& model);

// Bytes of the residual stream of one micro-batch that a rank hands to the next
// stage.
double StreamBytes(const ModelSpec& model, const Layout& layout,
                   const Implementation& style);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_GRAPH_LAYER_GRAPH_H_
