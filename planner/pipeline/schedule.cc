#include "planner/pipeline/schedule.h"

#include <algorithm>

#include "base/check.h"

namespace millrace {
namespace {

void CheckShape(PipelineShape shape, int32_t stage) {
  CHECK(shape.num_microbatches >= 1);
  CHECK(stage >= 0 && stage < shape.num_stages);
}

}  // namespace

std::vector<ChunkPass> OneForwardOneBackward(PipelineShape shape,
                                             int32_t stage) {
  CheckShape(shape, stage);
  const int32_t num_ahead =
      std::min(shape.num_stages - stage - 1, shape.num_microbatches);
  std::vector<ChunkPass> passes;
  passes.reserve(2 * shape.num_microbatches);
  for (int32_t i = 0; i < num_ahead; ++i) {
    passes.push_back({ChunkPassKind::kForward, stage, i});
  }
  for (int32_t i = 0; i < shape.num_microbatches; ++i) {
    if (i + num_ahead < shape.num_microbatches) {
      passes.push_back({ChunkPassKind::kForward, stage, i + num_ahead});
    }
    passes.push_back({ChunkPassKind::kBackward, stage, i});
  }
  return passes;
}

std::vector<ChunkPass> ZeroBubble(PipelineShape shape, int32_t stage) {
  if (stage == 0) return OneForwardOneBackward(shape, stage);
  std::vector<ChunkPass> passes;
  passes.reserve(3 * shape.num_microbatches);
  int32_t next_weight_gradient = 0;
  for (ChunkPass pass : OneForwardOneBackward(shape, stage)) {
    if (pass.kind == ChunkPassKind::kForward) {
      passes.push_back(pass);
      continue;
    }
    pass.kind = ChunkPassKind::kInputGradient;
    passes.push_back(pass);
    if (pass.microbatch_idx < stage) continue;
    passes.push_back(
        {ChunkPassKind::kWeightGradient, stage, next_weight_gradient++});
  }
  while (next_weight_gradient < shape.num_microbatches) {
    passes.push_back(
        {ChunkPassKind::kWeightGradient, stage, next_weight_gradient++});
  }
  return passes;
}

}  // namespace millrace
