#include "planner/program/op_table.h"

#include <iterator>

#include "base/check.h"
#include "planner/program/float8_attention_rows.h"
#include "planner/program/float8_block_rows.h"
#include "planner/program/op_row_words.h"
#include "planner/program/plan_only_rows.h"
#include "planner/program/step_rows.h"

namespace millrace {

// The rows. Operands are in the order in which kernels take them. Tensors are
// row-major.
namespace op_rows {

constexpr OpDescriptor kOpRows[] = {
    // The micro-batch of the executing instruction, from the host's data
    // loader. document_starts[t]: index within its sequence of the first token
    // of the document that token t belongs to; attention looks back no further.
    // pair_starts[t]: the same of the pair of answers that it belongs to, a
    // document of the chosen one and then one of the rejected one; -1: of none.
    // references[t]: the log-probability of the token's answer in the
    // reference.
    {.kind = OpKind::kLoadBatch,
     .name = "load_batch",
     .attributes = kAttributesIndex<ElementwiseAttributes>,
     .phases = {Phase::kForward},
     .lane = LaneRule::kHost,
     .outputs = {Int32("tokens", {T}), Int32("targets", {T}),
                 Int32("document_starts", {T}),
                 Int32("pair_starts", {T}).If(Presence::kWithPreferences),
                 Float32("references", {T}).If(Presence::kWithPreferences)}},

    // Rows of other tensor ranks are zero in x.
    {.kind = OpKind::kEmbeddingForward,
     .name = "embedding_forward",
     .attributes = kAttributesIndex<VocabAttributes>,
     .phases = {Phase::kForward},
     .inputs = {Int32("tokens", {T}).NotCounted(),
                Activation("weight", {V, H}).Moves(T* H)},
     .outputs = {Activation("x", {T, H})}},
    {.kind = OpKind::kEmbeddingBackward,
     .name = "embedding_backward",
     .attributes = kAttributesIndex<VocabAttributes>,
     .phases = {Phase::kWeightGradient},
     .inputs = {Int32("tokens", {T}).NotCounted(), Activation("d_x", {T, H})},
     .outputs = {Gradient("d_weight", {V, H}).Moves(2 * T * H)},
     .flops = T * H},

    // Learned positions are cut over tensor ranks like the embedding: a rank
    // adds its rows, and the sum over ranks has all of them. In place.
    {.kind = OpKind::kPositionForward,
     .name = "position_forward",
     .attributes = kAttributesIndex<VocabAttributes>,
     .phases = {Phase::kForward},
     .inputs = {Activation("x", {T, H}).JustWritten(),
                Activation("weight", {V, H})},
     .outputs = {Activation("x", {T, H}).SameAs(0)},
     .flops = T * H},
    {.kind = OpKind::kPositionBackward,
     .name = "position_backward",
     .attributes = kAttributesIndex<VocabAttributes>,
     .phases = {Phase::kWeightGradient},
     .inputs = {Activation("d_x", {T, H}).JustWritten()},
     .outputs = {Gradient("d_weight", {V, H})},
     .flops = T * H},

    // T counts the tokens of one rank: under sequence parallelism, its share.
    {.kind = OpKind::kRmsNormForward,
     .name = "rms_norm_forward",
     .attributes = kAttributesIndex<NormAttributes>,
     .phases = {Phase::kForward, Phase::kRecompute},
     // A norm of a block's output is recomputed with the output.
     .recompute = Recompute::kNorm | Recompute::kOutput,
     .inputs = {Activation("x", {T, H}).JustWritten(),
                Float32("weight", {H}).NotCounted()},
     .outputs = {Activation("y", {T, H}), Float32("rstd", {T}).NotCounted(),
                 AmaxOfOutput()},
     .flops = 4 * T * H},
    // residual = x + delta; y is its norm.
    {.kind = OpKind::kResidualRmsNormForward,
     .name = "residual_rms_norm_forward",
     .attributes = kAttributesIndex<NormAttributes>,
     .phases = {Phase::kForward, Phase::kRecompute},
     .recompute = Recompute::kNorm,
     .inputs = {Activation("x", {T, H}),
                Activation("delta", {T, H}).JustWritten(),
                Float32("weight", {H}).NotCounted()},
     .outputs = {Activation("residual", {T, H}), Activation("y", {T, H}),
                 Float32("rstd", {T}).NotCounted(), AmaxOfOutput()},
     .flops = 5 * T * H},
    // d_x = the norm's gradient + d_residual.
    {.kind = OpKind::kRmsNormBackward,
     .name = "rms_norm_backward",
     .attributes = kAttributesIndex<NormAttributes>,
     .phases = {Phase::kInputGradient},
     .inputs = {Activation("d_y", {T, H}).JustWritten(),
                Activation("residual", {T, H}),
                Float32("rstd", {T}).NotCounted(),
                Float32("weight", {H}).NotCounted(),
                Activation("d_residual", {T, H}).If(Presence::kOptional)},
     .outputs = {Activation("d_x", {T, H}),
                 Gradient("d_weight", {H}).NotCounted(), AmaxOfOutput()},
     .flops = 10 * T * H},

    // LayerNorm: the same with the mean taken off, and a bias.
    {.kind = OpKind::kLayerNormForward,
     .name = "layer_norm_forward",
     .attributes = kAttributesIndex<NormAttributes>,
     .phases = {Phase::kForward, Phase::kRecompute},
     .recompute = Recompute::kNorm,
     .inputs = {Activation("x", {T, H}).JustWritten(),
                Float32("weight", {H}).NotCounted(),
                Float32("bias", {H}).NotCounted()},
     .outputs = {Activation("y", {T, H}), Float32("rstd", {T}).NotCounted(),
                 Float32("mean", {T}).NotCounted(), AmaxOfOutput()},
     .flops = 7 * T * H},
    {.kind = OpKind::kResidualLayerNormForward,
     .name = "residual_layer_norm_forward",
     .attributes = kAttributesIndex<NormAttributes>,
     .phases = {Phase::kForward, Phase::kRecompute},
     .recompute = Recompute::kNorm,
     .inputs = {Activation("x", {T, H}),
                Activation("delta", {T, H}).JustWritten(),
                Float32("weight", {H}).NotCounted(),
                Float32("bias", {H}).NotCounted()},
     .outputs = {Activation("residual", {T, H}), Activation("y", {T, H}),
                 Float32("rstd", {T}).NotCounted(),
                 Float32("mean", {T}).NotCounted(), AmaxOfOutput()},
     .flops = 8 * T * H},
    {.kind = OpKind::kLayerNormBackward,
     .name = "layer_norm_backward",
     .attributes = kAttributesIndex<NormAttributes>,
     .phases = {Phase::kInputGradient},
     .inputs = {Activation("d_y", {T, H}).JustWritten(),
                Activation("residual", {T, H}),
                Float32("rstd", {T}).NotCounted(),
                Float32("mean", {T}).NotCounted(),
                Float32("weight", {H}).NotCounted(),
                Activation("d_residual", {T, H}).If(Presence::kOptional)},
     .outputs = {Activation("d_x", {T, H}),
                 Gradient("d_weight", {H}).NotCounted(),
                 Gradient("d_bias", {H}).NotCounted(), AmaxOfOutput()},
     .flops = 14 * T * H},

    {.kind = OpKind::kAdd,
     .name = "add",
     .attributes = kAttributesIndex<ElementwiseAttributes>,
     .phases = {Phase::kForward},
     .inputs = {Activation("x", {R, F}),
                Activation("delta", {R, F}).JustWritten()},
     .outputs = {Activation("sum", {R, F})},
     .flops = R * F},

    // c = op(a) op(b), plus the bias in each row; a and b are stored as the
    // transposes say.
    {.kind = OpKind::kGemm,
     .name = "gemm",
     .attributes = kAttributesIndex<GemmAttributes>,
     .phases = {Phase::kForward, Phase::kRecompute, Phase::kInputGradient,
                Phase::kWeightGradient},
     .recompute = Recompute::kQkv | Recompute::kGateUp | Recompute::kOutput,
     .profile = ProfileTable::kGemms,
     .fills_device = true,
     .inputs = {Activation("a", {m, k}).JustWritten(), Activation("b", {k, n}),
                Activation("bias", {n}).NotCounted().If(Presence::kWithBias)},
     .outputs = {OperandSpec(ElementRole::kGemmOutput, "c", {m, n})
                     .Added(Addition::kWhereAttributesSay)},
     .flops = 2 * m * n * k},

    // Copies of x with the scale by which its largest magnitude, amax, becomes
    // the format's largest number. x is read twice, unless amax is given.
    {.kind = OpKind::kQuantizeFloat8,
     .name = "quantize_float8",
     .attributes = kAttributesIndex<QuantizeAttributes>,
     .phases = {Phase::kForward, Phase::kRecompute, Phase::kInputGradient},
     .recompute = Recompute::kNorm | Recompute::kQkv | Recompute::kAttention |
                  Recompute::kOutput | Recompute::kGateUp |
                  Recompute::kActivation,
     .inputs = {Activation("x", {R, F}).Moves(W * R * F).JustWritten(),
                Float32("amax", {1}).NotCounted().If(Presence::kWithAmaxGiven)},
     .outputs =
         {Float32("unit", {1}).NotCounted(),
          Float32("amax", {1}).NotCounted().If(Presence::kWithoutAmaxGiven),
          Float8("rows", {R, F}).If(Presence::kWithRows),
          Float8("transposed", {F, R}).If(Presence::kWithTransposed)}},
    // c = a_unit b_unit a b^T, plus the bias in each row.
    {.kind = OpKind::kFloat8Gemm,
     .name = "float8_gemm",
     .attributes = kAttributesIndex<GemmAttributes>,
     .phases = {Phase::kForward, Phase::kRecompute, Phase::kInputGradient,
                Phase::kWeightGradient},
     .recompute = Recompute::kQkv | Recompute::kGateUp | Recompute::kOutput,
     .profile = ProfileTable::kGemms,
     .fills_device = true,
     .inputs = {Float8("a", {m, k}).JustWritten(), Float8("b", {n, k}),
                Float32("a_unit", {1}).NotCounted(),
                Float32("b_unit", {1}).NotCounted(),
                Activation("bias", {n}).NotCounted().If(Presence::kWithBias)},
     .outputs = {OperandSpec(ElementRole::kGemmOutput, "c", {m, n})
                     .Added(Addition::kWhereAttributesSay)},
     .flops = 2 * m * n * k},

    // Tensor cores take 8 bits along the inner dim alone, so input gradients
    // read weights transposed.
    {.kind = OpKind::kTransposeFloat8,
     .name = "transpose_float8",
     .attributes = kAttributesIndex<ElementwiseAttributes>,
     .phases = {Phase::kForward, Phase::kInputGradient},
     .inputs = {Float8("weight", {R, F})},
     .outputs = {Float8("transposed", {F, R})}},
    kQuantizeFloat8BlocksRow,
    kQuantizeFloat8SquaresRow,
    kFloat8BlockGemmRow,

    // R counts tokens.
    {.kind = OpKind::kBiasGradient,
     .name = "bias_gradient",
     .attributes = kAttributesIndex<ElementwiseAttributes>,
     .phases = {Phase::kWeightGradient},
     .inputs = {Activation("d_y", {R, F}).JustWritten()},
     .outputs = {Gradient("d_bias", {F}).NotCounted()},
     .flops = R * F},

    // Rotates query and key in place, backwards when `inverse`. Columns: N
    // query heads, K key heads, K value heads.
    {.kind = OpKind::kRope,
     .name = "rope",
     .attributes = kAttributesIndex<AttentionAttributes>,
     .phases = {Phase::kForward, Phase::kRecompute, Phase::kInputGradient},
     .recompute = Recompute::kQkv,
     .inputs = {Activation("qkv", {T, kQkvCols})
                    .Moves(T * (N + K) * D)
                    .JustWritten()},
     .outputs =
         {Activation("qkv", {T, kQkvCols}).Moves(T * (N + K) * D).SameAs(0),
          AmaxOfOutput()},
     .flops = 3 * T * (N + K) * D},
    // RMSNorm of each query and key head, whose weights are of head_dim, and
    // then the rotation, in place. The heads as they were, and what each was
    // scaled by, are left for the backward pass.
    {.kind = OpKind::kQkNormRopeForward,
     .name = "qk_norm_rope_forward",
     .attributes = kAttributesIndex<AttentionAttributes>,
     .phases = {Phase::kForward, Phase::kRecompute},
     .recompute = Recompute::kQkv,
     .inputs =
         {Activation("qkv", {T, kQkvCols}).Moves(T * (N + K) * D).JustWritten(),
          Float32("q_weight", {D}).NotCounted(),
          Float32("k_weight", {D}).NotCounted()},
     .outputs =
         {Activation("qkv", {T, kQkvCols}).Moves(T * (N + K) * D).SameAs(0),
          Activation("raw", {T, kQkCols}),
          Float32("rstd", {T, N + K}).NotCounted()},
     .flops = 7 * T * (N + K) * D},
    // The gradient of qkv, in place.
    {.kind = OpKind::kQkNormRopeBackward,
     .name = "qk_norm_rope_backward",
     .attributes = kAttributesIndex<AttentionAttributes>,
     .phases = {Phase::kInputGradient},
     .inputs = {Activation("d_qkv", {T, kQkvCols})
                    .Moves(T * (N + K) * D)
                    .JustWritten(),
                Activation("raw", {T, kQkCols}),
                Float32("rstd", {T, N + K}).NotCounted(),
                Float32("q_weight", {D}).NotCounted(),
                Float32("k_weight", {D}).NotCounted()},
     .outputs =
         {Activation("d_qkv", {T, kQkvCols}).Moves(T * (N + K) * D).SameAs(0),
          Gradient("d_q_weight", {D}).NotCounted(),
          Gradient("d_k_weight", {D}).NotCounted()},
     .flops = 13 * T * (N + K) * D},
    kQuantizeAttentionRow,
    kFloat8AttentionForwardRow,
    // Scores and values: two products, of which a causal kernel does half, and
    // with a window less.
    {.kind = OpKind::kAttentionForward,
     .name = "attention_forward",
     .attributes = kAttributesIndex<AttentionAttributes>,
     .phases = {Phase::kForward, Phase::kRecompute},
     .recompute = Recompute::kAttention,
     .profile = ProfileTable::kAttention,
     .fills_device = true,
     .inputs = {Activation("qkv", {T, kQkvCols}).JustWritten(),
                Int32("document_starts", {T}).NotCounted()},
     .outputs = {Activation("o", {T, N* D}),
                 Float32("lse", {N, T}).NotCounted(), AmaxOfOutput()},
     .flops = 2 * B * N * L * kKeyTokens * D},
    // Five products, the scores once more among them.
    {.kind = OpKind::kAttentionBackward,
     .name = "attention_backward",
     .attributes = kAttributesIndex<AttentionAttributes>,
     .phases = {Phase::kInputGradient},
     .profile = ProfileTable::kAttention,
     .fills_device = true,
     .inputs = {Activation("qkv", {T, kQkvCols}),
                Int32("document_starts", {T}).NotCounted(),
                Activation("o", {T, N* D}), Float32("lse", {N, T}).NotCounted(),
                Activation("d_o", {T, N* D}).JustWritten()},
     .outputs = {Activation("d_qkv", {T, kQkvCols}),
                 Workspace("delta", {N, T})},
     .flops = 5 * B * N * L * kKeyTokens * D},

    // gate_up has the gate columns first. R counts tokens.
    {.kind = OpKind::kSwigluForward,
     .name = "swiglu_forward",
     .attributes = kAttributesIndex<ElementwiseAttributes>,
     .phases = {Phase::kForward, Phase::kRecompute},
     .recompute = Recompute::kActivation,
     .inputs = {Activation("gate_up", {R, 2 * F}).JustWritten()},
     .outputs = {Activation("activation", {R, F}), AmaxOfOutput()},
     .flops = 5 * R * F},
    {.kind = OpKind::kSwigluBackward,
     .name = "swiglu_backward",
     .attributes = kAttributesIndex<ElementwiseAttributes>,
     .phases = {Phase::kInputGradient},
     .inputs = {Activation("gate_up", {R, 2 * F}),
                Activation("d_activation", {R, F}).JustWritten()},
     .outputs = {Activation("d_gate_up", {R, 2 * F}), AmaxOfOutput()},
     .flops = 10 * R * F},

    // The same with another gate.
    {.kind = OpKind::kGegluForward,
     .name = "geglu_forward",
     .attributes = kAttributesIndex<ElementwiseAttributes>,
     .phases = {Phase::kForward, Phase::kRecompute},
     .recompute = Recompute::kActivation,
     .inputs = {Activation("gate_up", {R, 2 * F}).JustWritten()},
     .outputs = {Activation("activation", {R, F}), AmaxOfOutput()},
     .flops = 11 * R * F},
    {.kind = OpKind::kGegluBackward,
     .name = "geglu_backward",
     .attributes = kAttributesIndex<ElementwiseAttributes>,
     .phases = {Phase::kInputGradient},
     .inputs = {Activation("gate_up", {R, 2 * F}),
                Activation("d_activation", {R, F}).JustWritten()},
     .outputs = {Activation("d_gate_up", {R, 2 * F}), AmaxOfOutput()},
     .flops = 20 * R * F},

    {.kind = OpKind::kGeluForward,
     .name = "gelu_forward",
     .attributes = kAttributesIndex<ElementwiseAttributes>,
     .phases = {Phase::kForward, Phase::kRecompute},
     .recompute = Recompute::kActivation,
     .inputs = {Activation("up", {R, F}).JustWritten()},
     .outputs = {Activation("activation", {R, F})},
     .flops = 10 * R * F},
    {.kind = OpKind::kGeluBackward,
     .name = "gelu_backward",
     .attributes = kAttributesIndex<ElementwiseAttributes>,
     .phases = {Phase::kInputGradient},
     .inputs = {Activation("up", {R, F}),
                Activation("d_activation", {R, F}).JustWritten()},
     .outputs = {Activation("d_up", {R, F})},
     .flops = 18 * R * F},

    // Forward and backward of the head and the loss in one pass over chunks of
    // tokens, for one tensor rank.
    {.kind = OpKind::kLinearCrossEntropy,
     .name = "linear_cross_entropy",
     .attributes = kAttributesIndex<VocabAttributes>,
     .phases = {Phase::kInputGradient},
     .profile = ProfileTable::kCrossEntropy,
     .inputs = {Activation("hidden", {T, H}).JustWritten(),
                Activation("weight", {V, H}),
                Int32("targets", {T}).NotCounted()},
     .outputs = {Activation("d_hidden", {T, H}),
                 Gradient("d_weight", {V, H}).Moves(V* H),
                 Scalars().NotCounted().Added(Addition::kAlways),
                 Workspace("logits", {C, V})},
     .flops = 2 * T * H * V * J},
    // stats has each token's maximum, sum of exponentials, and target logit or
    // 0 where another rank has it.
    {.kind = OpKind::kCrossEntropyStats,
     .name = "cross_entropy_stats",
     .attributes = kAttributesIndex<VocabAttributes>,
     .phases = {Phase::kForward},
     .profile = ProfileTable::kCrossEntropy,
     .inputs = {Activation("hidden", {T, H}), Activation("weight", {V, H}),
                Int32("targets", {T}).NotCounted()},
     .outputs = {Float32("stats", {T, 3}).NotCounted(),
                 Workspace("logits", {C, V})},
     .flops = 2 * T * H * V},
    // d_hidden is this rank's part of a sum over tensor ranks. With weights,
    // each token's gradient is multiplied by its own, and kPreferenceLoss has
    // added the loss.
    {.kind = OpKind::kCrossEntropyGradient,
     .name = "cross_entropy_gradient",
     .attributes = kAttributesIndex<VocabAttributes>,
     .phases = {Phase::kInputGradient},
     .profile = ProfileTable::kCrossEntropy,
     .inputs =
         {Activation("hidden", {T, H}), Activation("weight", {V, H}),
          Int32("targets", {T}).NotCounted(),
          Float32("all_stats", {X, T, 3}).NotCounted(),
          Workspace("logits", {C, V}).If(Presence::kWithKeptLogits),
          Float32("weights", {T}).NotCounted().If(Presence::kWithPreferences)},
     .outputs = {Activation("d_hidden", {T, H}),
                 Gradient("d_weight", {V, H}).Moves(V* H),
                 Scalars().NotCounted().Added(Addition::kAlways),
                 Workspace("logits", {C, V})},
     .flops = 2 * T * H * V * J},
    // Validation needs no gradients.
    {.kind = OpKind::kCrossEntropyLoss,
     .name = "cross_entropy_loss",
     .attributes = kAttributesIndex<VocabAttributes>,
     .phases = {Phase::kForward},
     .inputs = {Int32("targets", {T}), Float32("all_stats", {X, T, 3})},
     .outputs = {Scalars().NotCounted().Added(Addition::kAlways)},
     .flops = 4 * T},
    // The loss of each pair, and the derivative of it by each token's cross
    // entropy. log_probabilities[t]: of the answer that begins at token t, else
    // zero. A trained token of no pair adds its cross entropy, with weight one.
    // Beta and label smoothing come from the job.
    {.kind = OpKind::kPreferenceLoss,
     .name = "preference_loss",
     .attributes = kAttributesIndex<VocabAttributes>,
     .phases = {Phase::kForward},
     .inputs = {Int32("targets", {T}), Int32("document_starts", {T}),
                Int32("pair_starts", {T}), Float32("references", {T}),
                Float32("all_stats", {X, T, 3})},
     .outputs = {Float32("weights", {T}), Float32("log_probabilities", {T}),
                 PreferenceScalars().NotCounted().Added(Addition::kAlways)},
     .flops = 8 * T},

    // In place, the shard is the slice at the rank's index in the group. The
    // full tensor of a reduce-scatter is scratch afterwards.
    {.kind = OpKind::kAllGather,
     .name = "all_gather",
     .attributes = kAttributesIndex<CollectiveAttributes>,
     .phases = {Phase::kForward, Phase::kRecompute, Phase::kInputGradient,
                Phase::kWeightGradient, Phase::kParameterGather,
                Phase::kGradientReduce},
     .lane = LaneRule::kOfGroup,
     .recompute = Recompute::kNorm | Recompute::kQkv | Recompute::kGateUp,
     .profile = ProfileTable::kCommunication,
     .inputs = {OfAttributes("shard", {S}).NotCounted()},
     .outputs = {OfAttributes("full", {E}).MayBe(0)}},
    {.kind = OpKind::kReduceScatter,
     .name = "reduce_scatter",
     .attributes = kAttributesIndex<CollectiveAttributes>,
     .phases = {Phase::kForward, Phase::kRecompute, Phase::kInputGradient,
                Phase::kGradientReduce},
     .lane = LaneRule::kOfGroup,
     .recompute = Recompute::kOutput,
     .profile = ProfileTable::kCommunication,
     .inputs = {OfAttributes("full", {E}).ScratchAfterwards()},
     .outputs = {OfAttributes("shard", {S}).NotCounted().MayBe(0)}},
    {.kind = OpKind::kAllReduce,
     .name = "all_reduce",
     .attributes = kAttributesIndex<CollectiveAttributes>,
     .phases = {Phase::kGradientReduce, Phase::kOptimizer},
     .lane = LaneRule::kOfGroup,
     .profile = ProfileTable::kCommunication,
     .inputs = {OfAttributes("x", {E}).Moves(Z)},
     .outputs = {OfAttributes("sum", {E}).NotCounted().SameAs(0)}},

    // Both join neighbouring stages; TransferAttributes has the direction.
    {.kind = OpKind::kSend,
     .name = "send",
     .attributes = kAttributesIndex<TransferAttributes>,
     .phases = {Phase::kForward, Phase::kInputGradient, Phase::kOptimizer},
     .lane = LaneRule::kToPeer,
     .profile = ProfileTable::kCommunication,
     .inputs = {OfAttributes("x", {E})}},
    {.kind = OpKind::kReceive,
     .name = "receive",
     .attributes = kAttributesIndex<TransferAttributes>,
     .phases = {Phase::kForward, Phase::kInputGradient, Phase::kOptimizer},
     .lane = LaneRule::kFromPeer,
     .profile = ProfileTable::kCommunication,
     .outputs = {OfAttributes("x", {E})}},
};

constexpr const OpDescriptor& RowOf(size_t kind) {
  if (kind < std::size(kOpRows)) return kOpRows[kind];
  kind -= std::size(kOpRows);
  if (kind < std::size(kStepRows)) return kStepRows[kind];
  return kPlanOnlyRows[kind - std::size(kStepRows)];
}

constexpr bool PlanOnlyKindsAreRowsWithoutOperands() {
  for (size_t i = 0; i < kNumOpKinds; ++i) {
    const OpDescriptor& op = RowOf(i);
    const bool has_operands = op.inputs.size() + op.outputs.size() > 0;
    const bool is_executed = i < kNumExecutedOpKinds;
    if (has_operands != is_executed) return false;
    if (op.backends.empty() == is_executed) return false;
  }
  return true;
}
static_assert(PlanOnlyKindsAreRowsWithoutOperands());

constexpr bool AreInTheOrderOfKinds() {
  for (size_t i = 0; i < kNumOpKinds; ++i) {
    if (static_cast<size_t>(RowOf(i).kind) != i) return false;
  }
  constexpr size_t kNumExecuted = std::size(kOpRows) + std::size(kStepRows);
  return kNumExecuted == kNumExecutedOpKinds &&
         kNumExecuted + std::size(kPlanOnlyRows) == kNumOpKinds;
}
static_assert(AreInTheOrderOfKinds());

}  // namespace op_rows

const OpDescriptor& Describe(OpKind kind) {
  const int index = static_cast<int>(kind);
  CHECK(index < kNumOpKinds) << "unknown op kind " << index;
  return op_rows::RowOf(static_cast<size_t>(index));
}

bool IsPlanOnly(OpKind kind) { return Describe(kind).backends.empty(); }

size_t NumResults(OpKind kind) {
  size_t num_results = 0;
  for (const OperandSpec& output : Describe(kind).outputs) {
    if (output.role == ElementRole::kWorkspace) break;
    ++num_results;
  }
  return num_results;
}

}  // namespace millrace
