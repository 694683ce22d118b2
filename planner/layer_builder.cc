#include "planner/layer_builder.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "planner/ops.h"

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
  if (layout_.recompute == Recompute::kNone) return false;
  if (layout_.recompute == Recompute::kFull) {
    return piece != Piece::kLast || implementation_.recomputes_whole_layer;
  }
  const SelectiveRecompute& selective = implementation_.selective;
  switch (piece) {
    case Piece::kNorm:
      return selective.norms;
    case Piece::kActivation:
      return selective.activation;
    case Piece::kAttention:
      return selective.attention;
    case Piece::kLatentProjection:
      return selective.latent_projections;
    case Piece::kExperts:
      return selective.experts;
    case Piece::kElementwise:
    case Piece::kSecondProduct:
      return selective.every_second_product;
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

void LayerBuilder::Linear(Piece piece, const LinearShape& shape) {
  const auto [tokens, out, in, count, low_precision] = shape;
  GemmWork forward{.phase = WorkPhase::kForward,
                   .m = tokens,
                   .n = out,
                   .k = in,
                   .count = count,
                   .low_precision = low_precision};
  work_.gemms.push_back(forward);
  if (IsRepeated(piece)) {
    forward.phase = WorkPhase::kRecompute;
    work_.gemms.push_back(forward);
  }
  work_.gemms.push_back({.phase = WorkPhase::kInputGradient,
                         .m = tokens,
                         .n = in,
                         .k = out,
                         .count = count,
                         .low_precision = low_precision});
  work_.gemms.push_back({.phase = WorkPhase::kWeightGradient,
                         .m = out,
                         .n = in,
                         .k = tokens,
                         .count = count,
                         .low_precision = low_precision});
  if (!quantizes() || !low_precision) return;
  // Copies of x and of its transpose, then of the output's gradient. What made
  // x writes them where ops are fused; gradients come from other products.
  const double copies = 2 * quantized_bytes();
  const auto x = static_cast<double>(count * tokens * in);
  const auto d_y = static_cast<double>(count * tokens * out);
  const bool is_fused = implementation_.fused_elementwise;
  Bandwidth(piece, (copies + (is_fused ? 0 : element_bytes_)) * x,
            (copies + element_bytes_) * d_y, is_fused ? 0 : 1);
}

void LayerBuilder::Attention(const AttentionWork& forward) {
  work_.attention.push_back(forward);
  work_.attention.back().phase = WorkPhase::kForward;
  if (IsRepeated(Piece::kAttention)) {
    work_.attention.push_back(forward);
    work_.attention.back().phase = WorkPhase::kRecompute;
  }
  work_.attention.push_back(forward);
  work_.attention.back().phase = WorkPhase::kInputGradient;
}

void LayerBuilder::Bandwidth(Piece piece, double forward_bytes,
                             double backward_bytes, int32_t launches) {
  work_.bandwidth.push_back({.phase = WorkPhase::kForward,
                             .bytes = forward_bytes,
                             .launches = launches});
  if (IsRepeated(piece)) {
    work_.bandwidth.push_back({.phase = WorkPhase::kRecompute,
                               .bytes = forward_bytes,
                               .launches = launches});
  }
  if (backward_bytes > 0) {
    work_.bandwidth.push_back({.phase = WorkPhase::kInputGradient,
                               .bytes = backward_bytes,
                               .launches = launches});
  }
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

void LayerBuilder::EnterTensor(int64_t width) {
  if (layout_.tensor == 1) return;
  const auto elements = static_cast<double>(tokens_ * width);
  if (!implementation_.sequence_parallel) {
    CommunicateBackward(WorkPhase::kInputGradient, CommAxis::kTensor,
                        CommKind::kAllReduce, elements);
    return;
  }
  Communicate(Piece::kProduct, CommAxis::kTensor, CommKind::kAllGather,
              elements);
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
