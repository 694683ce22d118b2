#include "planner/pipeline/order_bound.h"

#include <algorithm>
#include <limits>

namespace millrace {
namespace {

// What a stage sends between its first and its last pass: all but what may
// leave after that, one each way.
struct SendsOfStage {
  double count = 0;
  double held_up_s = 0;  // By each, of the stage's passes.

  // Without so many of the first.
  double HeldUpSeconds(double without) const {
    return std::max(0.0, count - without) * held_up_s;
  }
};

SendsOfStage SendsOf(const PipelineCosts& costs,
                     const std::vector<int32_t>& own,
                     const TransferTraffic& traffic) {
  const auto num_chunks = static_cast<int32_t>(costs.chunks.size());
  const auto is_elsewhere = [&](int32_t chunk, int32_t stage) {
    return chunk >= 0 && chunk < num_chunks &&
           costs.stage_of_chunk[chunk] != stage;
  };
  const int32_t stage = costs.stage_of_chunk[own.front()];
  int32_t num_next = 0, num_previous = 0;
  double shortest_pass_s = std::numeric_limits<double>::infinity();
  for (const int32_t c : own) {
    if (is_elsewhere(c + 1, stage)) {
      ++num_next;
      shortest_pass_s = std::min(shortest_pass_s, costs.chunks[c].forward_s);
    }
    if (is_elsewhere(c - 1, stage)) {
      ++num_previous;
      shortest_pass_s =
          std::min(shortest_pass_s, costs.chunks[c].input_gradient_s);
    }
  }
  const double m = costs.num_microbatches;
  SendsOfStage sends{.count = std::max(0.0, m * num_next - 1) +
                              std::max(0.0, m * num_previous - 1)};
  if (traffic.blocks) {
    sends.held_up_s = costs.transfer_s;
    return sends;
  }
  // A transfer starts as its pass ends. Where the next such pass takes longer,
  // it is through by then, and no two transfers of the stage are under way at
  // once: each holds passes up for itself, or they wait for it.
  const double slowed_s = traffic.communication_slowdown * costs.transfer_s;
  if (shortest_pass_s < slowed_s) return sends;
  sends.held_up_s =
      std::min(costs.transfer_s, slowed_s * (1 - 1 / traffic.compute_slowdown));
  return sends;
}

}  // namespace

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
                              int64_t memory_bytes,
                              const TransferTraffic& traffic) const {
  const std::vector<int32_t>& own = chunks_[static_cast<size_t>(stage)];
  if (own.empty()) return 0;
  double forward_s = 0, input_s = 0, weight_s = 0;
  double longest_forward_s = 0;
  double holds_nothing_s = 0, most_s_per_byte = 0;
  double held_s = 0, byte_seconds = 0;  // Of what one micro-batch holds.
  int64_t least_bytes = std::numeric_limits<int64_t>::max();
  double least_left_s = left_s_[own.front()];
  for (const int32_t c : own) {
    const ChunkCosts& chunk = costs.chunks[c];
    least_left_s = std::min(least_left_s, left_s_[c]);
    forward_s += chunk.forward_s;
    input_s += chunk.input_gradient_s;
    weight_s += chunk.weight_gradient_s;
    longest_forward_s = std::max(longest_forward_s, chunk.forward_s);
    least_bytes = std::min(least_bytes, chunk.activation_bytes);
    const auto bytes = static_cast<double>(chunk.activation_bytes);
    if (chunk.activation_bytes > 0) {
      most_s_per_byte = std::max(most_s_per_byte, chunk.forward_s / bytes);
    } else {
      holds_nothing_s += chunk.forward_s;
    }
    held_s += back_s_[c] - there_s_[c];
    byte_seconds += bytes * (back_s_[c] - there_s_[c]) +
                    static_cast<double>(chunk.weight_gradient_bytes) *
                        (chunk.input_gradient_s + chunk.weight_gradient_s);
  }
  const double m = costs.num_microbatches;
  const double first_s = there_s_[own.front()];
  const double all_s = m * (forward_s + input_s + weight_s);
  const SendsOfStage sends = SendsOf(costs, own, traffic);
  double bound_s = first_s + sends.HeldUpSeconds(0) +
                   std::max(all_s, m * (forward_s + input_s) + least_left_s);
  if (memory_bytes == kNoMemoryLimit) return bound_s;
  const auto memory = static_cast<double>(memory_bytes);
  double ahead_s =
      std::min(m * forward_s, m * holds_nothing_s + most_s_per_byte * memory);
  double most_ahead = m * static_cast<double>(own.size());  // Forward passes.
  if (least_bytes > 0) {
    // Only whole activations.
    const auto most_held = static_cast<double>(memory_bytes / least_bytes);
    most_ahead = std::min(most_ahead, most_held);
    ahead_s = std::min(ahead_s, most_ahead * longest_forward_s);
    if (most_held > 0) {
      bound_s = std::max(bound_s, first_s + m * held_s / most_held);
    }
  }
  bound_s = std::max(bound_s, back_s_[own.back()] + all_s - ahead_s +
                                  sends.HeldUpSeconds(most_ahead));
  if (byte_seconds == 0) return bound_s;
  return std::max(bound_s, first_s + m * byte_seconds / memory);
}

double LowerBoundOfMakespan(const PipelineCosts& costs,
                            const std::vector<int64_t>& memory_bytes,
                            const TransferTraffic& traffic) {
  const MakespanBound bound(costs);
  double bound_s = 0;
  for (int32_t s = 0; s < costs.num_stages; ++s) {
    const int64_t bytes =
        memory_bytes.empty() ? kNoMemoryLimit : memory_bytes[s];
    bound_s = std::max(bound_s, bound.OfStage(costs, s, bytes, traffic));
  }
  return bound_s;
}

}  // namespace millrace
