#include "planner/pipeline/order_bound.h"

#include <algorithm>
#include <limits>

namespace millrace {
namespace {

constexpr int64_t kNoMemoryLimit = std::numeric_limits<int64_t>::max();

class MakespanBound {
 public:
  explicit MakespanBound(const PipelineCosts& costs);

  double OfStage(int32_t stage, int64_t memory_bytes) const;

 private:
  const PipelineCosts& costs_;
  // By chunk, of a micro-batch alone in the pipeline: when it can reach the
  // chunk on its way there and on its way back, and how long after the chunk's
  // last input gradient the step ends.
  std::vector<double> there_s_, back_s_, left_s_;
  std::vector<std::vector<int32_t>> chunks_;  // By stage, ascending.
};

MakespanBound::MakespanBound(const PipelineCosts& costs)
    : costs_(costs),
      there_s_(costs.chunks.size()),
      back_s_(costs.chunks.size()),
      left_s_(costs.chunks.size()),
      chunks_(static_cast<size_t>(costs.num_stages)) {
  const auto num_chunks = static_cast<int32_t>(costs.chunks.size());
  const auto transfer_s = [&](int32_t a, int32_t b) {
    return costs.stage_of_chunk[a] == costs.stage_of_chunk[b]
               ? 0
               : costs.transfer_s;
  };
  const std::vector<ChunkCosts>& chunks = costs.chunks;
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
    chunks_[costs.stage_of_chunk[c]].push_back(c);
  }
}

double MakespanBound::OfStage(int32_t stage, int64_t memory_bytes) const {
  const std::vector<int32_t>& own = chunks_[stage];
  if (own.empty()) return 0;
  double forward_s = 0, input_s = 0, weight_s = 0;
  double longest_forward_s = 0;
  double holds_nothing_s = 0, most_s_per_byte = 0;
  double held_s = 0, byte_seconds = 0;  // For all that one micro-batch holds.
  int64_t least_bytes = std::numeric_limits<int64_t>::max();
  double least_left_s = left_s_[own.front()];
  for (const int32_t c : own) {
    const ChunkCosts& chunk = costs_.chunks[c];
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
  const double m = costs_.num_microbatches;
  const double first_s = there_s_[own.front()];
  const double all_s = m * (forward_s + input_s + weight_s);
  double bound_s =
      first_s + std::max(all_s, m * (forward_s + input_s) + least_left_s);
  if (memory_bytes == kNoMemoryLimit) return bound_s;
  const auto memory = static_cast<double>(memory_bytes);
  double ahead_s =
      std::min(m * forward_s, m * holds_nothing_s + most_s_per_byte * memory);
  if (least_bytes > 0) {
    // Only whole activations.
    const auto most_held = static_cast<double>(memory_bytes / least_bytes);
    ahead_s = std::min(ahead_s, most_held * longest_forward_s);
    if (most_held > 0) {
      bound_s = std::max(bound_s, first_s + m * held_s / most_held);
    }
  }
  bound_s = std::max(bound_s, back_s_[own.back()] + all_s - ahead_s);
  if (byte_seconds == 0) return bound_s;
  return std::max(bound_s, first_s + m * byte_seconds / memory);
}

}  // namespace

double LowerBoundOfMakespan(const PipelineCosts& costs,
                            const std::vector<int64_t>& memory_bytes) {
  const MakespanBound bound(costs);
  double bound_s = 0;
  for (int32_t s = 0; s < costs.num_stages; ++s) {
    const int64_t bytes =
        memory_bytes.empty() ? kNoMemoryLimit : memory_bytes[s];
    bound_s = std::max(bound_s, bound.OfStage(s, bytes));
  }
  return bound_s;
}

}  // namespace millrace
