#include "planner/pipeline/order_times.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"

namespace millrace {
namespace {

constexpr double kNotYet = -1;

absl::Status StuckAt(int32_t stage, const ChunkPass& pass) {
  return absl::InvalidArgumentError(absl::StrCat(
      "the order cannot run: stage ", stage, " waits for ever before the ",
      pass.kind == ChunkPassKind::kForward ? "forward" : "backward",
      " pass of chunk ", pass.chunk_idx, ", micro-batch ",
      pass.microbatch_idx));
}

}  // namespace

double SecondsOf(const PipelineCosts& costs, const ChunkPass& pass) {
  const ChunkCosts& chunk = costs.chunks[pass.chunk_idx];
  switch (pass.kind) {
    case ChunkPassKind::kForward:
      return chunk.forward_s;
    case ChunkPassKind::kBackward:
      return chunk.input_gradient_s + chunk.weight_gradient_s;
    case ChunkPassKind::kInputGradient:
      return chunk.input_gradient_s;
    case ChunkPassKind::kWeightGradient:
      return chunk.weight_gradient_s;
  }
  return 0;
}

OrderTimer::OrderTimer(const PipelineCosts& costs, int32_t transfer_buffers)
    : costs_(costs),
      transfer_buffers_(transfer_buffers),
      num_chunks_(static_cast<int32_t>(costs.chunks.size())) {
  times_.passes.resize(costs.num_stages);
}

bool OrderTimer::Run(const PassOrder& order) {
  const size_t num = costs_.chunks.size() * costs_.num_microbatches;
  for (Side* side : {&forward_, &gradient_}) {
    side->start_s.assign(num, kNotYet);
    side->end_s.assign(num, kNotYet);
  }
  next_.assign(order.size(), 0);
  free_s_.assign(order.size(), 0.0);
  for (int32_t s = costs_.num_stages; s-- > 0;) {
    times_.passes[s].clear();
    stages_to_run_.push_back(s);
  }
  while (!stages_to_run_.empty()) {
    const int32_t stage = stages_to_run_.back();
    stages_to_run_.pop_back();
    RunStage(order, stage);
  }
  times_.makespan_s = *std::max_element(free_s_.begin(), free_s_.end());
  for (int32_t s = 0; s < costs_.num_stages; ++s) {
    if (next_[s] < order[s].size()) return false;
  }
  return true;
}

size_t OrderTimer::IndexOf(int32_t chunk, int32_t microbatch) const {
  return static_cast<size_t>(chunk) * costs_.num_microbatches + microbatch;
}

bool OrderTimer::AreApart(int32_t a, int32_t b) const {
  return costs_.stage_of_chunk[a] != costs_.stage_of_chunk[b];
}

// When what the pass needs is there, or kNotYet.
double OrderTimer::ReadyAt(const ChunkPass& pass) const {
  if (pass.kind == ChunkPassKind::kWeightGradient) return 0;
  const bool is_forward = pass.kind == ChunkPassKind::kForward;
  const Side& side = is_forward ? forward_ : gradient_;
  const int32_t from = pass.chunk_idx + (is_forward ? -1 : 1);
  const int32_t to = pass.chunk_idx + (is_forward ? 1 : -1);
  double ready_s = 0;
  if (from >= 0 && from < num_chunks_) {
    const double end_s = side.end_s[IndexOf(from, pass.microbatch_idx)];
    if (end_s == kNotYet) return kNotYet;
    ready_s = end_s + (AreApart(from, pass.chunk_idx) ? costs_.transfer_s : 0);
  }
  const int32_t before = pass.microbatch_idx - transfer_buffers_;
  if (transfer_buffers_ > 0 && before >= 0 && to >= 0 && to < num_chunks_ &&
      AreApart(to, pass.chunk_idx)) {
    const double start_s = side.start_s[IndexOf(to, before)];
    if (start_s == kNotYet) return kNotYet;
    ready_s = std::max(ready_s, start_s);
  }
  return ready_s;
}

// Runs the stage as far as it gets. Marks the stages that may go on after that.
void OrderTimer::RunStage(const PassOrder& order, int32_t stage) {
  const std::vector<ChunkPass>& passes = order[stage];
  while (next_[stage] < passes.size()) {
    const ChunkPass& pass = passes[next_[stage]];
    const double ready_s = ReadyAt(pass);
    if (ready_s == kNotYet) return;
    const double start_s = std::max(free_s_[stage], ready_s);
    const double end_s = start_s + SecondsOf(costs_, pass);
    free_s_[stage] = end_s;
    times_.passes[stage].push_back({start_s, end_s});
    ++next_[stage];
    if (pass.kind == ChunkPassKind::kWeightGradient) continue;
    Side& side = pass.kind == ChunkPassKind::kForward ? forward_ : gradient_;
    const size_t idx = IndexOf(pass.chunk_idx, pass.microbatch_idx);
    side.start_s[idx] = start_s;
    side.end_s[idx] = end_s;
    for (const int32_t neighbour : {pass.chunk_idx - 1, pass.chunk_idx + 1}) {
      if (neighbour < 0 || neighbour >= num_chunks_) continue;
      const int32_t other = costs_.stage_of_chunk[neighbour];
      if (other != stage) stages_to_run_.push_back(other);
    }
  }
}

absl::StatusOr<OrderTimes> TimeOrder(const PipelineCosts& costs,
                                     const PassOrder& order,
                                     int32_t transfer_buffers) {
  OrderTimer timer(costs, transfer_buffers);
  const bool has_run = timer.Run(order);
  OrderTimes times = timer.times();
  for (int32_t s = 0; s < costs.num_stages; ++s) {
    if (!has_run && times.passes[s].size() < order[s].size()) {
      return StuckAt(s, order[s][times.passes[s].size()]);
    }
    times.peak_bytes.push_back(PeakBytes(costs, order[s]));
  }
  return times;
}

int64_t PeakBytes(const PipelineCosts& costs,
                  const std::vector<ChunkPass>& passes) {
  int64_t held = 0, peak = 0;
  for (const ChunkPass& pass : passes) {
    const ChunkCosts& chunk = costs.chunks[pass.chunk_idx];
    const int64_t more = chunk.weight_gradient_bytes - chunk.activation_bytes;
    switch (pass.kind) {
      case ChunkPassKind::kForward:
        held += chunk.activation_bytes;
        peak = std::max(peak, held);
        break;
      case ChunkPassKind::kBackward:
        peak = std::max(peak, held + more);
        held -= chunk.activation_bytes;
        break;
      case ChunkPassKind::kInputGradient:
        held += more;
        peak = std::max(peak, held);
        break;
      case ChunkPassKind::kWeightGradient:
        held -= chunk.weight_gradient_bytes;
        break;
    }
  }
  return peak;
}

absl::Status CheckCosts(const PipelineCosts& costs) {
  const size_t num_chunks = costs.chunks.size();
  if (costs.num_stages < 1 || costs.num_microbatches < 1 || num_chunks == 0 ||
      costs.stage_of_chunk.size() != num_chunks) {
    return absl::InvalidArgumentError(absl::StrCat(
        "costs of ", num_chunks, " chunks, the stages of ",
        costs.stage_of_chunk.size(), ", on ", costs.num_stages, " stages with ",
        costs.num_microbatches,
        " micro-batches: each must be one at least and every chunk have its "
        "stage"));
  }
  const auto is_cost = [](double seconds) {
    return std::isfinite(seconds) && seconds >= 0;
  };
  if (!is_cost(costs.transfer_s)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "transfer_s is ", costs.transfer_s, "; expected 0 or more"));
  }
  for (size_t i = 0; i < num_chunks; ++i) {
    const ChunkCosts& chunk = costs.chunks[i];
    if (costs.stage_of_chunk[i] < 0 ||
        costs.stage_of_chunk[i] >= costs.num_stages) {
      return absl::InvalidArgumentError(
          absl::StrCat("chunk ", i, " is on stage ", costs.stage_of_chunk[i],
                       " of ", costs.num_stages));
    }
    if (!is_cost(chunk.forward_s) || !is_cost(chunk.input_gradient_s) ||
        !is_cost(chunk.weight_gradient_s) || chunk.activation_bytes < 0 ||
        chunk.weight_gradient_bytes < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("chunk ", i, " has a negative or unknown cost"));
    }
  }
  return absl::OkStatus();
}

}  // namespace millrace
