#include "planner/pipeline/pass_order.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace millrace {
namespace {

void CheckShape(PipelineShape shape, int32_t stage) {
  CHECK(shape.num_microbatches >= 1);
  CHECK(stage >= 0 && stage < shape.num_stages);
}

std::string PassToString(const ChunkPass& pass) {
  constexpr const char* kKinds[] = {"forward", "backward", "input gradient",
                                    "weight gradient"};
  return absl::StrCat(kKinds[static_cast<int>(pass.kind)], " of chunk ",
                      pass.chunk_idx, ", micro-batch ", pass.microbatch_idx);
}

// Sizes of the groups in which micro-batches go through a stage's chunks: of
// num_stages each or, where that leaves some over, as even as can be and none
// smaller; a stage would otherwise wait for a group that is not through yet.
std::vector<int32_t> GroupSizes(const PipelineCosts& costs) {
  const int32_t num_groups =
      std::max(1, costs.num_microbatches / costs.num_stages);
  std::vector<int32_t> sizes(num_groups, costs.num_microbatches / num_groups);
  for (int32_t i = 0; i < costs.num_microbatches % num_groups; ++i) ++sizes[i];
  return sizes;
}

// The forward passes of one stage in the order of interleaving; backward passes
// visit the chunks the other way round.
std::vector<ChunkPass> InGroups(const PipelineCosts& costs, int32_t stage,
                                ChunkPassKind kind) {
  const auto num_chunks = static_cast<int32_t>(costs.chunks.size());
  const int32_t num_turns = num_chunks / costs.num_stages;
  std::vector<ChunkPass> passes;
  int32_t begin = 0;
  for (const int32_t size : GroupSizes(costs)) {
    for (int32_t turn = 0; turn < num_turns; ++turn) {
      const int32_t k =
          kind == ChunkPassKind::kForward ? turn : num_turns - 1 - turn;
      for (int32_t i = begin; i < begin + size; ++i) {
        passes.push_back({kind, k * costs.num_stages + stage, i});
      }
    }
    begin += size;
  }
  return passes;
}

// Where a micro-batch's work on one chunk stands, while an order is checked.
struct Seen {
  bool forward = false;
  bool backward = false;
  bool input_gradient = false;
  bool weight_gradient = false;
};

absl::Status CheckPass(const ChunkPass& pass, Seen& seen) {
  bool* mark = nullptr;
  bool is_early = false;
  switch (pass.kind) {
    case ChunkPassKind::kForward:
      mark = &seen.forward;
      break;
    case ChunkPassKind::kBackward:
      mark = &seen.backward;
      is_early = !seen.forward || seen.input_gradient || seen.weight_gradient;
      break;
    case ChunkPassKind::kInputGradient:
      mark = &seen.input_gradient;
      is_early = !seen.forward || seen.backward;
      break;
    case ChunkPassKind::kWeightGradient:
      mark = &seen.weight_gradient;
      is_early = !seen.input_gradient;
      break;
  }
  if (*mark) {
    return absl::InvalidArgumentError(
        absl::StrCat(PassToString(pass), " is there twice"));
  }
  if (is_early) {
    return absl::InvalidArgumentError(
        absl::StrCat(PassToString(pass),
                     " comes before what it needs, or both "
                     "whole and in parts"));
  }
  *mark = true;
  return absl::OkStatus();
}

PassOrder InterleavedOrder(const PipelineCosts& costs) {
  const auto num_chunks = static_cast<int32_t>(costs.chunks.size());
  const int32_t num_turns = num_chunks / costs.num_stages;
  PassOrder order(costs.num_stages);
  for (int32_t stage = 0; stage < costs.num_stages; ++stage) {
    const std::vector<ChunkPass> forward =
        InGroups(costs, stage, ChunkPassKind::kForward);
    const std::vector<ChunkPass> backward =
        InGroups(costs, stage, ChunkPassKind::kBackward);
    size_t num_ahead = 2 * (costs.num_stages - stage - 1) +
                       (num_turns - 1) * GroupSizes(costs).front();
    if (costs.num_microbatches < costs.num_stages) num_ahead = forward.size();
    num_ahead = std::min(num_ahead, forward.size());
    std::vector<ChunkPass>& passes = order[stage];
    passes.assign(forward.begin(), forward.begin() + num_ahead);
    for (size_t i = 0; i < backward.size(); ++i) {
      if (i + num_ahead < forward.size()) {
        passes.push_back(forward[i + num_ahead]);
      }
      passes.push_back(backward[i]);
    }
  }
  return order;
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

absl::StatusOr<PassOrder> OrderOf(Schedule schedule,
                                  const PipelineCosts& costs) {
  const size_t num_chunks = costs.chunks.size();
  const bool has_turns = schedule == Schedule::kInterleaved;
  bool fits =
      costs.num_stages >= 1 && costs.num_microbatches >= 1 &&
      costs.stage_of_chunk.size() == num_chunks && num_chunks > 0 &&
      num_chunks % costs.num_stages == 0 &&
      (has_turns || num_chunks == static_cast<size_t>(costs.num_stages));
  for (size_t i = 0; fits && i < num_chunks; ++i) {
    fits =
        costs.stage_of_chunk[i] == static_cast<int32_t>(i % costs.num_stages);
  }
  if (!fits) {
    return absl::InvalidArgumentError(absl::StrCat(
        ScheduleName(schedule), " has ",
        has_turns ? "chunk c on stage c modulo the stages" : "a chunk a stage",
        "; found ", num_chunks, " chunks on ", costs.num_stages,
        " stages placed otherwise; give the order itself"));
  }
  if (schedule == Schedule::kListScheduled) {
    return absl::InvalidArgumentError(
        "list is no known order: ListSchedule makes one");
  }
  if (has_turns) return InterleavedOrder(costs);
  const PipelineShape shape = {.num_stages = costs.num_stages,
                               .num_microbatches = costs.num_microbatches};
  PassOrder order;
  for (int32_t stage = 0; stage < costs.num_stages; ++stage) {
    order.push_back(schedule == Schedule::kZeroBubble
                        ? ZeroBubble(shape, stage)
                        : OneForwardOneBackward(shape, stage));
  }
  return order;
}

absl::Status CheckOrder(const PipelineCosts& costs, const PassOrder& order) {
  const size_t num_chunks = costs.chunks.size();
  if (costs.num_stages < 1 || costs.num_microbatches < 1 ||
      costs.stage_of_chunk.size() != num_chunks ||
      order.size() != static_cast<size_t>(costs.num_stages)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "an order of ", order.size(), " stages, ", num_chunks, " chunks on ",
        costs.stage_of_chunk.size(), " stated stages and ",
        costs.num_microbatches, " micro-batches do not fit ", costs.num_stages,
        " stages"));
  }
  std::vector<Seen> seen(num_chunks * costs.num_microbatches);
  for (int32_t stage = 0; stage < costs.num_stages; ++stage) {
    for (const ChunkPass& pass : order[stage]) {
      if (pass.chunk_idx < 0 ||
          static_cast<size_t>(pass.chunk_idx) >= num_chunks ||
          costs.stage_of_chunk[pass.chunk_idx] != stage ||
          pass.microbatch_idx < 0 ||
          pass.microbatch_idx >= costs.num_microbatches) {
        return absl::InvalidArgumentError(
            absl::StrCat(PassToString(pass), " is not one of stage ", stage));
      }
      if (absl::Status status =
              CheckPass(pass, seen[pass.chunk_idx * costs.num_microbatches +
                                   pass.microbatch_idx]);
          !status.ok()) {
        return absl::InvalidArgumentError(
            absl::StrCat("stage ", stage, ": ", status.message()));
      }
    }
  }
  for (size_t i = 0; i < seen.size(); ++i) {
    if (seen[i].backward || seen[i].weight_gradient) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("chunk ", i / costs.num_microbatches, ", micro-batch ",
                     i % costs.num_microbatches, " lacks its backward pass"));
  }
  return absl::OkStatus();
}

}  // namespace millrace
