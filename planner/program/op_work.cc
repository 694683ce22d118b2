#include "planner/program/op_work.h"

namespace millrace {
namespace {

constexpr double kFloatBytes = 4;

double AttentionFlops(bool backward, double num_sequences,
                      double sequence_length, double num_heads,
                      double head_dim) {
  // Forward: scores and values, two GEMMs of which a causal kernel does half.
  // Backward: five, the scores once more among them.
  const double gemm =
      num_sequences * num_heads * sequence_length * sequence_length * head_dim;
  return (backward ? 5 : 2) * gemm;
}

double CrossEntropyFlops(OpKind kind, const VocabAttributes& a) {
  const double gemm = 2 * static_cast<double>(a.num_tokens) *
                      static_cast<double>(a.hidden) *
                      static_cast<double>(a.vocab_rows);
  if (kind == OpKind::kCrossEntropyStats) return gemm;
  // Logits, unless they were kept, hidden gradient and weight gradient.
  return (a.keeps_logits ? 2 : 3) * gemm;
}

// Tokens that a kLoadBatch or kCrossEntropyLoss handles, whatever attributes
// say so.
struct ElementCount {
  double operator()(const NoAttributes&) const { return 0; }
  double operator()(const VocabAttributes& a) const {
    return static_cast<double>(a.num_tokens);
  }
  double operator()(const NormAttributes& a) const {
    return static_cast<double>(a.num_tokens * a.hidden);
  }
  double operator()(const GemmAttributes& a) const {
    return static_cast<double>(a.m * a.n);
  }
  double operator()(const AttentionAttributes& a) const {
    return static_cast<double>(a.num_sequences * a.sequence_length);
  }
  double operator()(const ElementwiseAttributes& a) const {
    return static_cast<double>(a.rows * a.cols);
  }
  double operator()(const CollectiveAttributes& a) const {
    return static_cast<double>(a.num_elements);
  }
  double operator()(const TransferAttributes& a) const {
    return static_cast<double>(a.num_elements);
  }
  double operator()(const OptimizerAttributes& a) const {
    return static_cast<double>(a.num_elements);
  }
};

double BytesOf(DType dtype) { return static_cast<double>(DTypeBytes(dtype)); }

// Of one element of an activation or a parameter.
double ActivationBytes(const Layout& layout) {
  return BytesOf(ActivationType(layout.precision));
}

OpWork GemmOpWork(const Layout& layout, const GemmAttributes& a) {
  const auto m = static_cast<double>(a.m);
  const auto n = static_cast<double>(a.n);
  const auto k = static_cast<double>(a.k);
  return {.flops = 2 * m * n * k,
          .bytes = ActivationBytes(layout) * (m * k + k * n) +
                   BytesOf(GemmOutputType(layout.precision, a)) * m * n *
                       (a.accumulate ? 2 : 1)};
}

OpWork AttentionOpWork(const Layout& layout, bool backward,
                       const AttentionAttributes& a) {
  const auto tokens = static_cast<double>(a.num_sequences * a.sequence_length);
  const auto qkv =
      static_cast<double>((a.num_heads + 2 * a.num_kv_heads) * a.head_dim);
  const auto output = static_cast<double>(a.num_heads * a.head_dim);
  return {
      .flops = AttentionFlops(backward, static_cast<double>(a.num_sequences),
                              static_cast<double>(a.sequence_length),
                              static_cast<double>(a.num_heads),
                              static_cast<double>(a.head_dim)),
      .bytes = ActivationBytes(layout) * tokens *
               (backward ? 2 * qkv + 2 * output : qkv + output)};
}

OpWork CrossEntropyWork(const Layout& layout, OpKind kind,
                        const VocabAttributes& a) {
  const auto tokens = static_cast<double>(a.num_tokens);
  const auto hidden = static_cast<double>(a.hidden);
  const auto rows = static_cast<double>(a.vocab_rows);
  // The gradient pass writes the hidden gradient and adds up the weight's.
  const double read =
      ActivationBytes(layout) * (tokens * hidden + rows * hidden);
  const double written = kind == OpKind::kCrossEntropyStats
                             ? 0
                             : ActivationBytes(layout) * tokens * hidden +
                                   kFloatBytes * rows * hidden;
  return {.flops = CrossEntropyFlops(kind, a), .bytes = read + written};
}

OpWork OptimizerWork(const Layout& layout, OpKind kind,
                     const OptimizerAttributes& a) {
  const double elements =
      static_cast<double>(a.num_elements) / (a.data_sharded ? layout.data : 1);
  // AdamW reads four buffers and writes three; master weights stand in for the
  // parameters, whose bf16 copy it then writes too.
  const bool has_master = layout.precision == Precision::kBfloat16;
  const double copy = has_master ? BytesOf(DType::kBfloat16) : 0;
  if (kind == OpKind::kAdamW) {
    return {.flops = 12 * elements,
            .bytes = (7 * kFloatBytes + copy) * elements};
  }
  if (kind == OpKind::kAccumulateGradients) {
    return {.flops = elements, .bytes = 3 * kFloatBytes * elements};
  }
  if (kind == OpKind::kCastParameters || kind == OpKind::kRoundGradients ||
      kind == OpKind::kWidenGradients) {
    return {.flops = 0,
            .bytes = (kFloatBytes + BytesOf(DType::kBfloat16)) * elements};
  }
  return {.flops = 2 * elements, .bytes = kFloatBytes * elements};
}

}  // namespace

OpWork WorkOf(const Layout& layout, OpKind kind,
              const OpAttributes& attributes) {
  const double elements = std::visit(ElementCount{}, attributes);
  const double activation_bytes = ActivationBytes(layout);
  switch (kind) {
    case OpKind::kLoadBatch:
      // Tokens, targets and document starts.
      return {.flops = 0, .bytes = 3 * 4 * elements};
    case OpKind::kEmbeddingForward: {
      const auto& a = std::get<VocabAttributes>(attributes);
      return {.flops = 0,
              .bytes = 2 * activation_bytes *
                       static_cast<double>(a.num_tokens * a.hidden)};
    }
    case OpKind::kEmbeddingBackward: {
      const auto& a = std::get<VocabAttributes>(attributes);
      const auto gradient = static_cast<double>(a.num_tokens * a.hidden);
      return {.flops = gradient,
              .bytes = (activation_bytes + 2 * kFloatBytes) * gradient};
    }
    case OpKind::kRmsNormForward:
      return {.flops = 4 * elements, .bytes = 2 * activation_bytes * elements};
    case OpKind::kResidualRmsNormForward:
      return {.flops = 5 * elements, .bytes = 4 * activation_bytes * elements};
    case OpKind::kRmsNormBackward:
      return {.flops = 10 * elements, .bytes = 4 * activation_bytes * elements};
    case OpKind::kAdd:
      return {.flops = elements, .bytes = 3 * activation_bytes * elements};
    case OpKind::kGemm:
      return GemmOpWork(layout, std::get<GemmAttributes>(attributes));
    case OpKind::kRope: {
      const auto& a = std::get<AttentionAttributes>(attributes);
      const double rotated =
          elements *
          static_cast<double>((a.num_heads + a.num_kv_heads) * a.head_dim);
      return {.flops = 3 * rotated, .bytes = 2 * activation_bytes * rotated};
    }
    case OpKind::kAttentionForward:
    case OpKind::kAttentionBackward:
      return AttentionOpWork(layout, kind == OpKind::kAttentionBackward,
                             std::get<AttentionAttributes>(attributes));
    case OpKind::kSwigluForward:
      return {.flops = 5 * elements, .bytes = 3 * activation_bytes * elements};
    case OpKind::kSwigluBackward:
      return {.flops = 10 * elements, .bytes = 5 * activation_bytes * elements};
    case OpKind::kLinearCrossEntropy:
    case OpKind::kCrossEntropyStats:
    case OpKind::kCrossEntropyGradient:
      return CrossEntropyWork(layout, kind,
                              std::get<VocabAttributes>(attributes));
    case OpKind::kCrossEntropyLoss:
      // Each tensor rank's three statistics, and the target.
      return {.flops = 4 * elements,
              .bytes = kFloatBytes * elements * (3 * layout.tensor + 1)};
    case OpKind::kAllGather:
    case OpKind::kReduceScatter:
    case OpKind::kAllReduce: {
      const auto& a = std::get<CollectiveAttributes>(attributes);
      return {.flops = 0,
              .bytes = elements * static_cast<double>(DTypeBytes(a.dtype))};
    }
    case OpKind::kSend:
    case OpKind::kReceive: {
      const auto& a = std::get<TransferAttributes>(attributes);
      return {.flops = 0,
              .bytes = elements * static_cast<double>(DTypeBytes(a.dtype))};
    }
    case OpKind::kZero:
      return {.flops = 0, .bytes = kFloatBytes * elements};
    case OpKind::kClipFactor:
      return {.flops = kNumStepScalars,
              .bytes = 8 * kNumStepScalars + kFloatBytes + 4};
    case OpKind::kAccumulateGradients:
    case OpKind::kRoundGradients:
    case OpKind::kWidenGradients:
    case OpKind::kSquaredNorm:
    case OpKind::kAdamW:
    case OpKind::kCastParameters:
      return OptimizerWork(layout, kind,
                           std::get<OptimizerAttributes>(attributes));
  }
  return {.flops = 0, .bytes = 0};
}

}  // namespace millrace
