#include "worker/train/gathered_parameters.h"

#include <algorithm>

#include "base/check.h"
#include "fault/replica_check.h"

namespace millrace {
namespace {

bool IsMadeAtStart(const Program& program, BufferId buffer) {
  return std::any_of(program.instructions.begin(), program.instructions.end(),
                     [&](const Instruction& instruction) {
                       return instruction.kind == OpKind::kQuantizeWeights &&
                              std::find(instruction.outputs.begin(),
                                        instruction.outputs.end(),
                                        buffer) != instruction.outputs.end();
                     });
}

}  // namespace

GatheredParts GatheredPartsOf(const Program& training,
                              const MeshCoordinates& rank) {
  const Layout& layout = training.layout;
  GatheredParts parts;
  if (!HasGathered(layout)) return parts;
  const int32_t num_slices = layout.group_data();
  const int32_t own = layout.slice_of(rank.data);
  uint64_t first_word = 0;
  for (const Instruction& instruction : training.instructions) {
    if (instruction.kind != OpKind::kAllGather ||
        instruction.phase != Phase::kParameterGather) {
      continue;
    }
    const BufferId id = instruction.outputs.front();
    const Buffer& buffer = training.buffers[id];
    // The magnitudes of weights are gathered for the step alone.
    if (buffer.arena != Arena::kPersistent) continue;
    const int64_t num_bytes = buffer.bytes / num_slices;
    CHECK(num_bytes * num_slices == buffer.bytes && num_bytes % 16 == 0)
        << buffer.name;
    const bool is_made_at_start = IsMadeAtStart(training, id);
    for (int32_t slice = 0; slice < num_slices; ++slice) {
      const bool is_updated = slice == own && !is_made_at_start;
      (is_updated ? parts.before_step : parts.after_step)
          .push_back({.slice = slice,
                      .buffer = id,
                      .offset_bytes = slice * num_bytes,
                      .num_bytes = num_bytes,
                      .first_word = first_word});
    }
    first_word += static_cast<uint64_t>(num_bytes) / 8;
  }
  return parts;
}

}  // namespace millrace
