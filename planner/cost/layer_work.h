// The parameters that one rank has of a layer, and the rules for layouts that
// can be planned.

#ifndef MILLRACE_PLANNER_COST_LAYER_WORK_H_
#define MILLRACE_PLANNER_COST_LAYER_WORK_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "planner/graph/layer_graph.h"
#include "planner/graph/style.h"
#include "planner/layout/layout.h"
#include "planner/layout/model.h"

namespace millrace {

// Elements of parameters of one rank: those that the whole data x context axis
// replicates, and those of experts, of which data x context x tensor / (expert
// x expert_tensor) ranks have the same.
struct RankParameters {
  double dense = 0;
  double experts = 0;
  // The part of `dense` that our workers keep and gather in 8 bits, without a
  // copy in the storage format. LoadOf() (stage_time.h) counts it.
  double float8 = 0;
  // The part of `dense` that has two copies in 8 bits beside the storage
  // format: where blocks have scales. LoadOf() counts it.
  double copied = 0;
};

RankParameters ParametersOfLayer(const ModelSpec& model, const Layout& layout,
                                 LayerKind kind);
RankParameters ParametersOfEmbedding(const ModelSpec& model,
                                     const Layout& layout);
RankParameters ParametersOfHead(const ModelSpec& model, const Layout& layout);

// The layers of each chunk, in the order in which passes visit chunks: chunk c
// is on stage c % pipeline. With one chunk a stage, they are StageLayers. With
// several, the chunks have equal numbers of layers where pipeline x interleave
// divides them. Otherwise some chunks have one layer more, the inner ones
// first, the latest first, so that the chunks with embedding and head have
// fewer.
std::vector<LayerRange> ChunkLayers(const ModelSpec& model,
                                    const Layout& layout,
                                    const Implementation& implementation);

// Ranks that hold the same experts: data x context x tensor / (expert x
// expert_tensor).
int32_t NumExpertReplicas(const Layout& layout);

// ValidateLayout's rules for layouts and models that may be planned only:
// InvalidArgument with the reason and the smallest change that would help.
absl::Status ValidatePlannedLayout(const ModelSpec& model, const Layout& layout,
                                   int64_t global_batch);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_COST_LAYER_WORK_H_
