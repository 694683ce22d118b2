#include "planner/cost/layer_work_builder.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "planner/program/ops.h"

namespace millrace {
namespace {

// Reads and writes of an element-wise op where each of its steps is a kernel of
// its own, as a multiple of one pass: casts to fp32 and back, and temporaries.
constexpr double kUnfusedPasses = 2.5;
constexpr int32_t kUnfusedLaunches = 4;

// Two scales for 16 elements of 4 bits (NVFP4), one for 32 of 8 bits (MXFP8);
// whole tensors' scales are nothing.
constexpr double kFloat8Bytes = 1 + 1.0 / 32;
constexpr double kFloat4Bytes = 0.5 + 1.0 / 16;

}  // namespace

LayerBuilder::LayerBuilder(const ModelSpec& model, const Layout& layout,
                           const Implementation& implementation)
    : model_(model),
      layout_(layout),
      implementation_(implementation),
      tokens_(layout.micro_batch * model.sequence_length / layout.context),
      shard_tokens_(tokens_ / layout.tensor),
      norm_tokens_(implementation.sequence_parallel ? shard_tokens_ : tokens_),
      element_bytes_(
          static_cast<double>(DTypeBytes(ActivationType(layout.precision)))) {}

bool LayerBuilder::IsRepeated(Piece piece) const {
  const Recompute set = layout_.recompute;
  if (set == Recompute::kNone) return false;
  if (set == Recompute::kPolicy) return IsInPolicy(piece);
  if (set == Recompute::kFull) {
    return piece != Piece::kLast || implementation_.recomputes_whole_layer;
  }
  switch (piece) {
    case Piece::kNorm:
      return Has(set, Recompute::kNorm);
    case Piece::kActivation:
    case Piece::kExpertActivation:
      return Has(set, Recompute::kActivation);
    case Piece::kQkv:
    case Piece::kRotary:
    case Piece::kLatentProjection:
      return Has(set, Recompute::kQkv);
    case Piece::kAttention:
    case Piece::kAttended:
      return Has(set, Recompute::kAttention);
    case Piece::kGateUp:
    case Piece::kExpertProducts:
      return Has(set, Recompute::kGateUp);
    case Piece::kOutput:
    case Piece::kOutputSum:
      return Has(set, Recompute::kOutput);
    case Piece::kExperts:
      return Has(set, Recompute::kDispatch);
    case Piece::kProduct:
    case Piece::kSecondProduct:
    case Piece::kLast:
      return false;
  }
  CHECK(false) << "unknown piece " << static_cast<int>(piece);
  return false;
}

bool LayerBuilder::IsInPolicy(Piece piece) const {
  const SelectiveRecompute& selective = implementation_.selective;
  switch (piece) {
    case Piece::kNorm:
      return selective.norms;
    case Piece::kActivation:
      return selective.activation;
    case Piece::kExpertActivation:
      return selective.activation || selective.experts;
    case Piece::kAttention:
      return selective.attention;
    case Piece::kLatentProjection:
      return selective.latent_projections;
    case Piece::kExperts:
    case Piece::kExpertProducts:
      return selective.experts;
    case Piece::kRotary:
    case Piece::kOutput:
    case Piece::kSecondProduct:
      return selective.every_second_product;
    case Piece::kAttended:
    case Piece::kQkv:
    case Piece::kGateUp:
    case Piece::kOutputSum:
    case Piece::kProduct:
    case Piece::kLast:
      return false;
  }
  CHECK(false) << "unknown piece " << static_cast<int>(piece);
  return false;
}

double LayerBuilder::quantized_bytes() const {
  return layout_.gemm_format == GemmFormat::kFloat4 ? kFloat4Bytes
                                                    : kFloat8Bytes;
}

double LayerBuilder::product_input_bytes() const {
  return quantizes() && implementation_.keeps_quantized ? quantized_bytes()
                                                        : element_bytes_;
}

bool LayerBuilder::in_graph() const {
  return (part_ == LayerPart::kAttention && implementation_.graphs_attention) ||
         (part_ == LayerPart::kRouter && implementation_.graphs_router);
}

void LayerBuilder::Linear(Piece piece, const LinearShape& shape) {
  const auto [tokens, out, in, count, low_precision] = shape;
  const bool apart =
      part_ == LayerPart::kExperts && !implementation_.fuses_experts;
  const GemmWork forward{.phase = WorkPhase::kForward,
                         .m = tokens,
                         .n = out,
                         .k = in,
                         .count = count,
                         .low_precision = low_precision,
                         .launches = apart ? count : 1,
                         .in_graph = in_graph()};
  auto add = [&](WorkPhase phase, int64_t m, int64_t n, int64_t k) {
    GemmWork gemm = forward;
    gemm.phase = phase;
    gemm.m = m;
    gemm.n = n;
    gemm.k = k;
    work_.gemms.push_back(gemm);
  };
  work_.gemms.push_back(forward);
  if (IsRepeated(piece)) add(WorkPhase::kRecompute, tokens, out, in);
  add(WorkPhase::kInputGradient, tokens, in, out);
  add(WorkPhase::kWeightGradient, out, in, tokens);
  if (!quantizes() || !low_precision) return;
  // Copies of x and of its transpose, then of the output's gradient. What made
  // x writes them where ops are fused; gradients come from other products.
  const double copies = 2 * quantized_bytes();
  const auto x = static_cast<double>(count * tokens * in);
  const auto d_y = static_cast<double>(count * tokens * out);
  const bool is_fused = implementation_.fused_elementwise && !apart;
  Bandwidth(piece, (copies + (is_fused ? 0 : element_bytes_)) * x,
            (copies + element_bytes_) * d_y,
            is_fused ? 0 : static_cast<int32_t>(forward.launches));
}

void LayerBuilder::Attention(const AttentionWork& forward) {
  auto add = [&](WorkPhase phase) {
    work_.attention.push_back(forward);
    work_.attention.back().phase = phase;
    work_.attention.back().in_graph = in_graph();
  };
  add(WorkPhase::kForward);
  if (IsRepeated(Piece::kAttention)) add(WorkPhase::kRecompute);
  add(WorkPhase::kInputGradient);
}

void LayerBuilder::Bandwidth(Piece piece, double forward_bytes,
                             double backward_bytes, int32_t launches) {
  auto add = [&](WorkPhase phase, double bytes) {
    work_.bandwidth.push_back({.phase = phase,
                               .bytes = bytes,
                               .launches = launches,
                               .in_graph = in_graph()});
  };
  add(WorkPhase::kForward, forward_bytes);
  if (IsRepeated(piece)) add(WorkPhase::kRecompute, forward_bytes);
  if (backward_bytes > 0) add(WorkPhase::kInputGradient, backward_bytes);
}

void LayerBuilder::Elementwise(Piece piece, double forward_elements,
                               double backward_elements) {
  const bool is_fused = implementation_.fused_elementwise;
  const double bytes = element_bytes_ * (is_fused ? 1 : kUnfusedPasses);
  Bandwidth(piece, bytes * forward_elements, bytes * backward_elements,
            is_fused ? 1 : kUnfusedLaunches);
}

void LayerBuilder::Norm(int64_t tokens, int64_t width) {
  // Residual and block's output in, their sum and the norm out; backward the
  // gradients of norm and stream and the norm's input in, the stream's out.
  const auto elements = static_cast<double>(tokens * width);
  Elementwise(Piece::kNorm, 4 * elements, 4 * elements);
}

void LayerBuilder::Communicate(Piece piece, CommAxis axis, CommKind kind,
                               double elements) {
  CommWork comm{.phase = WorkPhase::kForward,
                .axis = axis,
                .kind = kind,
                .bytes = elements * element_bytes_};
  work_.comm.push_back(comm);
  if (!IsRepeated(piece)) return;
  comm.phase = WorkPhase::kRecompute;
  work_.comm.push_back(comm);
}

void LayerBuilder::CommunicateBackward(WorkPhase phase, CommAxis axis,
                                       CommKind kind, double elements) {
  work_.comm.push_back({.phase = phase,
                        .axis = axis,
                        .kind = kind,
                        .bytes = elements * element_bytes_});
}

void LayerBuilder::Exchange(Piece piece, double elements) {
  const size_t first = work_.comm.size();
  Communicate(piece, CommAxis::kExpert, CommKind::kAllToAll, elements);
  CommunicateBackward(WorkPhase::kInputGradient, CommAxis::kExpert,
                      CommKind::kAllToAll, elements);
  if (!implementation_.sends_tokens_once) return;
  for (size_t i = first; i < work_.comm.size(); ++i) {
    work_.comm[i].experts_per_row = model_.moe.experts_per_token;
  }
}

void LayerBuilder::EnterTensor(Piece piece, int64_t width) {
  if (layout_.tensor == 1) return;
  const auto elements = static_cast<double>(tokens_ * width);
  if (!implementation_.sequence_parallel) {
    CommunicateBackward(WorkPhase::kInputGradient, CommAxis::kTensor,
                        CommKind::kAllReduce, elements);
    return;
  }
  Communicate(piece, CommAxis::kTensor, CommKind::kAllGather, elements);
  if (!implementation_.keeps_gathered) {
    CommunicateBackward(WorkPhase::kWeightGradient, CommAxis::kTensor,
                        CommKind::kAllGather, elements);
  }
  CommunicateBackward(WorkPhase::kInputGradient, CommAxis::kTensor,
                      CommKind::kReduceScatter, elements);
}

void LayerBuilder::LeaveTensor(Piece piece, int64_t width) {
  if (layout_.tensor == 1) return;
  const auto elements = static_cast<double>(tokens_ * width);
  if (!implementation_.sequence_parallel) {
    Communicate(piece, CommAxis::kTensor, CommKind::kAllReduce, elements);
    return;
  }
  Communicate(piece, CommAxis::kTensor, CommKind::kReduceScatter, elements);
  CommunicateBackward(WorkPhase::kInputGradient, CommAxis::kTensor,
                      CommKind::kAllGather, elements);
}

void LayerBuilder::Keep(Piece piece, double bytes) {
  (IsRepeated(piece) ? repeated_bytes_ : kept_bytes_) += bytes;
}

void LayerBuilder::KeepNormed(int64_t width) {
  const bool is_whole = implementation_.keeps_gathered;
  Keep(Piece::kNorm,
       static_cast<double>((is_whole ? tokens_ : norm_tokens_) * width) *
           product_input_bytes());
}

void LayerBuilder::Work(double bytes) {
  block_bytes_ = std::max(block_bytes_, bytes);
}

LayerWork LayerBuilder::Build() && {
  work_.activation_bytes = std::llround(kept_bytes_);
  work_.working_bytes = std::llround(repeated_bytes_ + block_bytes_);
  return std::move(work_);
}

}  // namespace millrace
