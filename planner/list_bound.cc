#include "planner/list_bound.h"

#include <algorithm>

namespace millrace {

MakespanBound::MakespanBound(const PipelineCosts& least)
    : there_s_(least.chunks.size()),
      back_s_(least.chunks.size()),
      left_s_(least.chunks.size()),
      chunks_(static_cast<size_t>(least.num_stages)) {
  const auto num_chunks = static_cast<int32_t>(least.chunks.size());
  const auto transfer_s = [&](int32_t a, int32_t b) {
    return least.stage_of_chunk[a] == least.stage_of_chunk[b]
               ? 0
               : least.transfer_s;
  };
  const std::vector<ChunkCosts>& chunks = least.chunks;
  for (int32_t c = 1; c < num_chunks; ++c) {
    there_s_[c] =
        there_s_[c - 1] + chunks[c - 1].forward_s + transfer_s(c - 1, c);
  }
  left_s_[0] = chunks[0].weight_gradient_s;
  for (int32_t c = 1; c < num_chunks; ++c) {
    left_s_[c] = std::max(
        chunks[c].weight_gradient_s,
        transfer_s(c - 1, c) + chunks[c - 1].input_gradient_s + left_s_[c - 1]);
  }
  back_s_.back() = there_s_.back() + chunks.back().forward_s;
  for (int32_t c = num_chunks - 1; c-- > 0;) {
    back_s_[c] =
        back_s_[c + 1] + chunks[c + 1].input_gradient_s + transfer_s(c, c + 1);
  }
  for (int32_t c = 0; c < num_chunks; ++c) {
    chunks_[static_cast<size_t>(least.stage_of_chunk[c])].push_back(c);
  }
}

double MakespanBound::OfStage(const PipelineCosts& costs, int32_t stage,
                              int64_t memory_bytes) const {
  const std::vector<int32_t>& own = chunks_[static_cast<size_t>(stage)];
  if (own.empty()) return 0;
  double forward_s = 0, input_s = 0, weight_s = 0;
  double holds_nothing_s = 0, most_s_per_byte = 0;
  double byte_seconds = 0;  // That one micro-batch holds.
  double least_left_s = left_s_[own.front()];
  for (const int32_t c : own) {
    const ChunkCosts& chunk = costs.chunks[c];
    least_left_s = std::min(least_left_s, left_s_[c]);
    forward_s += chunk.forward_s;
    input_s += chunk.input_gradient_s;
    weight_s += chunk.weight_gradient_s;
    const auto bytes = static_cast<double>(chunk.activation_bytes);
    if (chunk.activation_bytes > 0) {
      most_s_per_byte = std::max(most_s_per_byte, chunk.forward_s / bytes);
    } else {
      holds_nothing_s += chunk.forward_s;
    }
    byte_seconds += bytes * (back_s_[c] - there_s_[c]) +
                    static_cast<double>(chunk.weight_gradient_bytes) *
                        (chunk.input_gradient_s + chunk.weight_gradient_s);
  }
  const double m = costs.num_microbatches;
  const double first_s = there_s_[own.front()];
  const double all_s = m * (forward_s + input_s + weight_s);
  double bound_s =
      first_s + std::max(all_s, m * (forward_s + input_s) + least_left_s);
  if (memory_bytes == kNoMemoryLimit) return bound_s;
  const auto memory = static_cast<double>(memory_bytes);
  const double ahead_s =
      std::min(m * forward_s, m * holds_nothing_s + most_s_per_byte * memory);
  bound_s = std::max(bound_s, back_s_[own.back()] + all_s - ahead_s);
  if (byte_seconds == 0) return bound_s;
  return std::max(bound_s, first_s + m * byte_seconds / memory);
}

double LowerBoundOfMakespan(const PipelineCosts& costs,
                            const std::vector<int64_t>& memory_bytes) {
  const MakespanBound bound(costs);
  double bound_s = 0;
  for (int32_t s = 0; s < costs.num_stages; ++s) {
    bound_s = std::max(
        bound_s,
        bound.OfStage(costs, s,
                      memory_bytes.empty() ? kNoMemoryLimit : memory_bytes[s]));
  }
  return bound_s;
}

}  // namespace millrace
