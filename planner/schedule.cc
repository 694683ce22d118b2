#include "planner/schedule.h"

#include <algorithm>

#include "base/check.h"

namespace millrace {

std::vector<Pass> OneForwardOneBackward(PipelineShape shape, int32_t stage) {
  CHECK(shape.num_microbatches >= 1);
  CHECK(stage >= 0 && stage < shape.num_stages);
  const int32_t num_ahead =
      std::min(shape.num_stages - stage - 1, shape.num_microbatches);
  std::vector<Pass> passes;
  passes.reserve(2 * shape.num_microbatches);
  for (int32_t i = 0; i < num_ahead; ++i) {
    passes.push_back({PassKind::kForward, i});
  }
  for (int32_t i = 0; i < shape.num_microbatches; ++i) {
    if (i + num_ahead < shape.num_microbatches) {
      passes.push_back({PassKind::kForward, i + num_ahead});
    }
    passes.push_back({PassKind::kBackward, i});
  }
  return passes;
}

}  // namespace millrace
