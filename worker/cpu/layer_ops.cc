// The ops inside a transformer layer. Operands in the order that
// planner/program/op_table.cc gives them.

#include <variant>

#include "base/status_macros.h"
#include "kernels/attention/attention.h"
#include "kernels/norm/layernorm.h"
#include "kernels/norm/rmsnorm.h"
#include "kernels/pointwise/bias.h"
#include "kernels/pointwise/elementwise.h"
#include "kernels/pointwise/gelu.h"
#include "kernels/pointwise/qk_norm_rope.h"
#include "kernels/pointwise/rope.h"
#include "kernels/pointwise/swiglu.h"
#include "worker/cpu/ops.h"
#include "worker/train/product_bias.h"

namespace millrace {
namespace {

BoundOp BindRmsNormForward(const OpContext& context, const Instruction& in) {
  const auto& attributes = std::get<NormAttributes>(in.attributes);
  const RmsNormForwardArgs args = {
      .y = context.Output<float>(in, 0),
      .rstd = context.Output<float>(in, 1),
      .x = context.Input<float>(in, 0),
      .weight = context.Input<float>(in, 1),
      .num_tokens = attributes.num_tokens,
      .hidden = attributes.hidden,
      .epsilon = static_cast<float>(attributes.epsilon),
      .adds_one = attributes.adds_one};
  return [args, num_threads = context.kernels->num_threads()] {
    return RmsNormForward(args, num_threads);
  };
}

BoundOp BindResidualRmsNormForward(const OpContext& context,
                                   const Instruction& in) {
  const auto& attributes = std::get<NormAttributes>(in.attributes);
  const ResidualRmsNormForwardArgs args = {
      .residual = context.Output<float>(in, 0),
      .y = context.Output<float>(in, 1),
      .rstd = context.Output<float>(in, 2),
      .x = context.Input<float>(in, 0),
      .delta = context.Input<float>(in, 1),
      .weight = context.Input<float>(in, 2),
      .num_tokens = attributes.num_tokens,
      .hidden = attributes.hidden,
      .epsilon = static_cast<float>(attributes.epsilon),
      .adds_one = attributes.adds_one};
  return [args, num_threads = context.kernels->num_threads()] {
    return ResidualRmsNormForward(args, num_threads);
  };
}

BoundOp BindRmsNormBackward(const OpContext& context, const Instruction& in) {
  const auto& attributes = std::get<NormAttributes>(in.attributes);
  const RmsNormBackwardArgs args = {
      .d_x = context.Output<float>(in, 0),
      .d_weight = context.Output<float>(in, 1),
      .d_y = context.Input<float>(in, 0),
      .x = context.Input<float>(in, 1),
      .rstd = context.Input<float>(in, 2),
      .weight = context.Input<float>(in, 3),
      .d_residual =
          in.inputs.size() > 4 ? context.Input<float>(in, 4) : nullptr,
      .num_tokens = attributes.num_tokens,
      .hidden = attributes.hidden,
      .accumulate = attributes.accumulate,
      .adds_one = attributes.adds_one};
  return [args, num_threads = context.kernels->num_threads()] {
    return RmsNormBackward(args, num_threads);
  };
}

BoundOp BindLayerNormForward(const OpContext& context, const Instruction& in) {
  const auto& attributes = std::get<NormAttributes>(in.attributes);
  const LayerNormForwardArgs args = {
      .y = context.Output<float>(in, 0),
      .mean = context.Output<float>(in, 2),
      .rstd = context.Output<float>(in, 1),
      .x = context.Input<float>(in, 0),
      .weight = context.Input<float>(in, 1),
      .bias = context.Input<float>(in, 2),
      .num_tokens = attributes.num_tokens,
      .hidden = attributes.hidden,
      .epsilon = static_cast<float>(attributes.epsilon)};
  return [args, num_threads = context.kernels->num_threads()] {
    return LayerNormForward(args, num_threads);
  };
}

BoundOp BindResidualLayerNormForward(const OpContext& context,
                                     const Instruction& in) {
  const auto& attributes = std::get<NormAttributes>(in.attributes);
  const ResidualLayerNormForwardArgs args = {
      .residual = context.Output<float>(in, 0),
      .y = context.Output<float>(in, 1),
      .mean = context.Output<float>(in, 3),
      .rstd = context.Output<float>(in, 2),
      .x = context.Input<float>(in, 0),
      .delta = context.Input<float>(in, 1),
      .weight = context.Input<float>(in, 2),
      .bias = context.Input<float>(in, 3),
      .num_tokens = attributes.num_tokens,
      .hidden = attributes.hidden,
      .epsilon = static_cast<float>(attributes.epsilon)};
  return [args, num_threads = context.kernels->num_threads()] {
    return ResidualLayerNormForward(args, num_threads);
  };
}

BoundOp BindLayerNormBackward(const OpContext& context, const Instruction& in) {
  const auto& attributes = std::get<NormAttributes>(in.attributes);
  const LayerNormBackwardArgs args = {
      .d_x = context.Output<float>(in, 0),
      .d_weight = context.Output<float>(in, 1),
      .d_bias = context.Output<float>(in, 2),
      .d_y = context.Input<float>(in, 0),
      .x = context.Input<float>(in, 1),
      .mean = context.Input<float>(in, 3),
      .rstd = context.Input<float>(in, 2),
      .weight = context.Input<float>(in, 4),
      .d_residual =
          in.inputs.size() > 5 ? context.Input<float>(in, 5) : nullptr,
      .num_tokens = attributes.num_tokens,
      .hidden = attributes.hidden,
      .accumulate = attributes.accumulate};
  return [args, num_threads = context.kernels->num_threads()] {
    return LayerNormBackward(args, num_threads);
  };
}

BoundOp BindAdd(const OpContext& context, const Instruction& in) {
  const auto& attributes = std::get<ElementwiseAttributes>(in.attributes);
  const AddArgs args = {.out = context.Output<float>(in, 0),
                        .a = context.Input<float>(in, 0),
                        .b = context.Input<float>(in, 1),
                        .num_elements = attributes.rows * attributes.cols};
  return [args, num_threads = context.kernels->num_threads()] {
    return Add(args, num_threads);
  };
}

absl::StatusOr<BoundOp> BindGemm(const OpContext& context,
                                 const Instruction& in) {
  const auto& attributes = std::get<GemmAttributes>(in.attributes);
  ASSIGN_OR_RETURN(GemmPlan * plan, context.kernels->Gemm(attributes));
  const AddBiasArgs bias = {.x = context.Output<float>(in, 0),
                            .bias = AddsBias(attributes, context.coordinates)
                                        ? context.Input<float>(in, 2)
                                        : nullptr,
                            .num_rows = attributes.m,
                            .num_cols = attributes.n};
  return
      [plan, bias, kernels = context.kernels, a = context.Input<float>(in, 0),
       b = context.Input<float>(in, 1)]() -> absl::Status {
        RETURN_IF_ERROR(plan->Run(bias.x, a, b, kernels->scratch()));
        if (bias.bias == nullptr) return absl::OkStatus();
        return AddBias(bias, kernels->num_threads());
      };
}

BoundOp BindBiasGradient(const OpContext& context, const Instruction& in) {
  const auto& attributes = std::get<ElementwiseAttributes>(in.attributes);
  const BiasGradientArgs args = {.d_bias = context.Output<float>(in, 0),
                                 .d_y = context.Input<float>(in, 0),
                                 .num_rows = attributes.rows,
                                 .num_cols = attributes.cols,
                                 .accumulate = attributes.accumulate};
  return [args, num_threads = context.kernels->num_threads()] {
    return BiasGradient(args, num_threads);
  };
}

absl::StatusOr<BoundOp> BindRope(const OpContext& context,
                                 const Instruction& in) {
  const auto& attributes = std::get<AttentionAttributes>(in.attributes);
  ASSIGN_OR_RETURN(const float* table, context.kernels->RopeTable(attributes));
  const RopeArgs args = {
      .qkv = context.Output<float>(in, 0),
      .table = table,
      .num_tokens = attributes.num_sequences * attributes.sequence_length,
      .sequence_length = attributes.sequence_length,
      .num_heads = attributes.num_heads,
      .num_kv_heads = attributes.num_kv_heads,
      .head_dim = attributes.head_dim,
      .inverse = attributes.inverse,
      .rotary_dim = attributes.rotary_dim};
  return [args, num_threads = context.kernels->num_threads()] {
    return Rope(args, num_threads);
  };
}

QkNormRopeShape HeadsOf(const AttentionAttributes& attributes) {
  return {.num_tokens = attributes.num_sequences * attributes.sequence_length,
          .sequence_length = attributes.sequence_length,
          .num_heads = attributes.num_heads,
          .num_kv_heads = attributes.num_kv_heads,
          .head_dim = attributes.head_dim,
          .adds_one = attributes.adds_one};
}

absl::StatusOr<BoundOp> BindQkNormRopeForward(const OpContext& context,
                                              const Instruction& in) {
  const auto& attributes = std::get<AttentionAttributes>(in.attributes);
  ASSIGN_OR_RETURN(const float* table, context.kernels->RopeTable(attributes));
  const QkNormRopeForwardArgs args = {
      .qkv = context.Output<float>(in, 0),
      .raw = context.Output<float>(in, 1),
      .rstd = context.Output<float>(in, 2),
      .q_weight = context.Input<float>(in, 1),
      .k_weight = context.Input<float>(in, 2),
      .table = table,
      .epsilon = static_cast<float>(attributes.norm_epsilon),
      .shape = HeadsOf(attributes)};
  return [args, num_threads = context.kernels->num_threads()] {
    return QkNormRopeForward(args, num_threads);
  };
}

absl::StatusOr<BoundOp> BindQkNormRopeBackward(const OpContext& context,
                                               const Instruction& in) {
  const auto& attributes = std::get<AttentionAttributes>(in.attributes);
  ASSIGN_OR_RETURN(const float* table, context.kernels->RopeTable(attributes));
  const QkNormRopeBackwardArgs args = {
      .d_qkv = context.Output<float>(in, 0),
      .d_q_weight = context.Output<float>(in, 1),
      .d_k_weight = context.Output<float>(in, 2),
      .raw = context.Input<float>(in, 1),
      .rstd = context.Input<float>(in, 2),
      .q_weight = context.Input<float>(in, 3),
      .k_weight = context.Input<float>(in, 4),
      .table = table,
      .shape = HeadsOf(attributes),
      .accumulate = attributes.accumulate};
  return [args, num_threads = context.kernels->num_threads()] {
    return QkNormRopeBackward(args, num_threads);
  };
}

AttentionShape ShapeOf(const AttentionAttributes& attributes) {
  return {.num_sequences = attributes.num_sequences,
          .sequence_length = attributes.sequence_length,
          .num_heads = attributes.num_heads,
          .num_kv_heads = attributes.num_kv_heads,
          .head_dim = attributes.head_dim,
          .window = attributes.window,
          .softcap = static_cast<float>(attributes.softcap)};
}

BoundOp BindAttentionForward(const OpContext& context, const Instruction& in) {
  const AttentionForwardArgs args = {
      .o = context.Output<float>(in, 0),
      .lse = context.Output<float>(in, 1),
      .qkv = context.Input<float>(in, 0),
      .document_starts = context.Input<int32_t>(in, 1),
      .shape = ShapeOf(std::get<AttentionAttributes>(in.attributes))};
  return [args, num_threads = context.kernels->num_threads()] {
    return AttentionForward(args, num_threads);
  };
}

BoundOp BindAttentionBackward(const OpContext& context, const Instruction& in) {
  const AttentionBackwardArgs args = {
      .d_qkv = context.Output<float>(in, 0),
      .delta = context.Output<float>(in, 1),
      .qkv = context.Input<float>(in, 0),
      .document_starts = context.Input<int32_t>(in, 1),
      .o = context.Input<float>(in, 2),
      .lse = context.Input<float>(in, 3),
      .d_o = context.Input<float>(in, 4),
      .shape = ShapeOf(std::get<AttentionAttributes>(in.attributes))};
  return [args, num_threads = context.kernels->num_threads()] {
    return AttentionBackward(args, num_threads);
  };
}

GluGate GateOf(const Instruction& in) {
  const bool is_geglu =
      in.kind == OpKind::kGegluForward || in.kind == OpKind::kGegluBackward;
  return is_geglu ? GluGate::kGelu : GluGate::kSilu;
}

GeluForm FormOf(const ElementwiseAttributes& attributes) {
  return attributes.erf ? GeluForm::kErf : GeluForm::kTanh;
}

BoundOp BindSwigluForward(const OpContext& context, const Instruction& in) {
  const auto& attributes = std::get<ElementwiseAttributes>(in.attributes);
  const SwigluForwardArgs args = {.activation = context.Output<float>(in, 0),
                                  .gate_up = context.Input<float>(in, 0),
                                  .num_tokens = attributes.rows,
                                  .ffn_hidden = attributes.cols,
                                  .gate = GateOf(in)};
  return [args, num_threads = context.kernels->num_threads()] {
    return SwigluForward(args, num_threads);
  };
}

BoundOp BindSwigluBackward(const OpContext& context, const Instruction& in) {
  const auto& attributes = std::get<ElementwiseAttributes>(in.attributes);
  const SwigluBackwardArgs args = {.d_gate_up = context.Output<float>(in, 0),
                                   .gate_up = context.Input<float>(in, 0),
                                   .d_activation = context.Input<float>(in, 1),
                                   .num_tokens = attributes.rows,
                                   .ffn_hidden = attributes.cols,
                                   .gate = GateOf(in)};
  return [args, num_threads = context.kernels->num_threads()] {
    return SwigluBackward(args, num_threads);
  };
}

BoundOp BindGeluForward(const OpContext& context, const Instruction& in) {
  const auto& attributes = std::get<ElementwiseAttributes>(in.attributes);
  const GeluForwardArgs args = {
      .y = context.Output<float>(in, 0),
      .x = context.Input<float>(in, 0),
      .num_elements = attributes.rows * attributes.cols,
      .form = FormOf(attributes)};
  return [args, num_threads = context.kernels->num_threads()] {
    return GeluForward(args, num_threads);
  };
}

BoundOp BindGeluBackward(const OpContext& context, const Instruction& in) {
  const auto& attributes = std::get<ElementwiseAttributes>(in.attributes);
  const GeluBackwardArgs args = {
      .d_x = context.Output<float>(in, 0),
      .x = context.Input<float>(in, 0),
      .d_y = context.Input<float>(in, 1),
      .num_elements = attributes.rows * attributes.cols,
      .form = FormOf(attributes)};
  return [args, num_threads = context.kernels->num_threads()] {
    return GeluBackward(args, num_threads);
  };
}

}  // namespace

void RegisterLayerOps(CpuBinders& binders) {
  binders.Bind(OpKind::kRmsNormForward, BindRmsNormForward);
  binders.Bind(OpKind::kResidualRmsNormForward, BindResidualRmsNormForward);
  binders.Bind(OpKind::kRmsNormBackward, BindRmsNormBackward);
  binders.Bind(OpKind::kLayerNormForward, BindLayerNormForward);
  binders.Bind(OpKind::kResidualLayerNormForward, BindResidualLayerNormForward);
  binders.Bind(OpKind::kLayerNormBackward, BindLayerNormBackward);
  binders.Bind(OpKind::kAdd, BindAdd);
  binders.Bind(OpKind::kGemm, BindGemm);
  binders.Bind(OpKind::kBiasGradient, BindBiasGradient);
  binders.Bind(OpKind::kRope, BindRope);
  binders.Bind(OpKind::kQkNormRopeForward, BindQkNormRopeForward);
  binders.Bind(OpKind::kQkNormRopeBackward, BindQkNormRopeBackward);
  binders.Bind(OpKind::kAttentionForward, BindAttentionForward);
  binders.Bind(OpKind::kAttentionBackward, BindAttentionBackward);
  binders.Bind(OpKind::kSwigluForward, BindSwigluForward);
  binders.Bind(OpKind::kSwigluBackward, BindSwigluBackward);
  binders.Bind(OpKind::kGegluForward, BindSwigluForward);
  binders.Bind(OpKind::kGegluBackward, BindSwigluBackward);
  binders.Bind(OpKind::kGeluForward, BindGeluForward);
  binders.Bind(OpKind::kGeluBackward, BindGeluBackward);
}

}  // namespace millrace
