// The ops inside a transformer layer, but for attention. Operands in the order
// that planner/program/op_table.cc gives them.

#include <variant>

#include "base/status_macros.h"
#include "kernels/norm/layernorm_bf16.h"
#include "kernels/norm/layernorm_plain.h"
#include "kernels/norm/rmsnorm_bf16.h"
#include "kernels/norm/rmsnorm_plain.h"
#include "kernels/pointwise/add_plain.h"
#include "kernels/pointwise/bias_plain.h"
#include "kernels/pointwise/elementwise_bf16.h"
#include "kernels/pointwise/gelu_bf16.h"
#include "kernels/pointwise/gelu_plain.h"
#include "kernels/pointwise/swiglu_bf16.h"
#include "kernels/pointwise/swiglu_plain.h"
#include "worker/cuda/ops/kernel_cache.h"
#include "worker/cuda/ops/ops.h"
#include "worker/train/product_bias.h"

namespace millrace {
namespace {

// Whether the rows are such as rmsnorm_bf16.h and layernorm_bf16.h read.
bool HasFastNorm(const CudaOpContext& context,
                 const NormAttributes& attributes) {
  return IsBf16(context) && attributes.hidden % 8 == 0 &&
         attributes.hidden <= 65536;
}

CudaOp BindRmsNormForward(const CudaOpContext& context, const Instruction& in) {
  const auto& attributes = std::get<NormAttributes>(in.attributes);
  void* y = context.Output<void>(in, 0);
  float* rstd = context.Output<float>(in, 1);
  const void* x = context.Input<void>(in, 0);
  const void* weight = context.Input<void>(in, 1);
  const auto epsilon = static_cast<float>(attributes.epsilon);
  const bool fp32_weight = IsFp32(context, in.inputs[1]);
  if (HasFastNorm(context, attributes)) {
    const RmsNormForwardBf16Args args = {.y = y,
                                         .rstd = rstd,
                                         .x = x,
                                         .weight = weight,
                                         .num_tokens = attributes.num_tokens,
                                         .hidden = attributes.hidden,
                                         .epsilon = epsilon,
                                         .fp32_weight = fp32_weight,
                                         .adds_one = attributes.adds_one,
                                         .amax = AmaxOf(context, in)};
    return [args](cudaStream_t stream) {
      return LaunchRmsNormForwardBf16(args, stream);
    };
  }
  const PlainRmsNormForwardArgs args = {.y = y,
                                        .rstd = rstd,
                                        .x = x,
                                        .weight = weight,
                                        .num_tokens = attributes.num_tokens,
                                        .hidden = attributes.hidden,
                                        .epsilon = epsilon,
                                        .fp32_weight = fp32_weight,
                                        .adds_one = attributes.adds_one};
  return ThenAmax(context, in,
                  [args, type = ElementTypeOf(context)](cudaStream_t stream) {
                    return LaunchPlainRmsNormForward(args, type, stream);
                  });
}

CudaOp BindResidualRmsNormForward(const CudaOpContext& context,
                                  const Instruction& in) {
  const auto& attributes = std::get<NormAttributes>(in.attributes);
  void* residual = context.Output<void>(in, 0);
  void* y = context.Output<void>(in, 1);
  float* rstd = context.Output<float>(in, 2);
  const void* x = context.Input<void>(in, 0);
  const void* delta = context.Input<void>(in, 1);
  const void* weight = context.Input<void>(in, 2);
  const auto epsilon = static_cast<float>(attributes.epsilon);
  const bool fp32_weight = IsFp32(context, in.inputs[2]);
  if (HasFastNorm(context, attributes)) {
    const ResidualRmsNormForwardBf16Args args = {
        .residual = residual,
        .y = y,
        .rstd = rstd,
        .x = x,
        .delta = delta,
        .weight = weight,
        .num_tokens = attributes.num_tokens,
        .hidden = attributes.hidden,
        .epsilon = epsilon,
        .fp32_weight = fp32_weight,
        .adds_one = attributes.adds_one,
        .amax = AmaxOf(context, in)};
    return [args](cudaStream_t stream) {
      return LaunchResidualRmsNormForwardBf16(args, stream);
    };
  }
  const PlainResidualRmsNormForwardArgs args = {
      .residual = residual,
      .y = y,
      .rstd = rstd,
      .x = x,
      .delta = delta,
      .weight = weight,
      .num_tokens = attributes.num_tokens,
      .hidden = attributes.hidden,
      .epsilon = epsilon,
      .fp32_weight = fp32_weight,
      .adds_one = attributes.adds_one};
  return ThenAmax(
      context, in, [args, type = ElementTypeOf(context)](cudaStream_t stream) {
        return LaunchPlainResidualRmsNormForward(args, type, stream);
      });
}

absl::StatusOr<CudaOp> BindRmsNormBackward(const CudaOpContext& context,
                                           const Instruction& in) {
  const auto& attributes = std::get<NormAttributes>(in.attributes);
  void* d_x = context.Output<void>(in, 0);
  float* d_weight = context.Output<float>(in, 1);
  const void* d_y = context.Input<void>(in, 0);
  const void* x = context.Input<void>(in, 1);
  const float* rstd = context.Input<float>(in, 2);
  const void* weight = context.Input<void>(in, 3);
  const bool fp32_weight = IsFp32(context, in.inputs[3]);
  const void* d_residual =
      in.inputs.size() > 4 ? context.Input<void>(in, 4) : nullptr;
  if (HasFastNorm(context, attributes)) {
    ASSIGN_OR_RETURN(
        void* workspace,
        ScratchOf(context, RmsNormBackwardBf16WorkspaceBytes(
                               attributes.num_tokens, attributes.hidden)));
    const RmsNormBackwardBf16Args args = {.d_x = d_x,
                                          .d_weight = d_weight,
                                          .d_y = d_y,
                                          .x = x,
                                          .rstd = rstd,
                                          .weight = weight,
                                          .d_residual = d_residual,
                                          .workspace = workspace,
                                          .num_tokens = attributes.num_tokens,
                                          .hidden = attributes.hidden,
                                          .accumulate = attributes.accumulate,
                                          .fp32_weight = fp32_weight,
                                          .adds_one = attributes.adds_one,
                                          .amax = AmaxOf(context, in)};
    return [args](cudaStream_t stream) {
      return LaunchRmsNormBackwardBf16(args, stream);
    };
  }
  ASSIGN_OR_RETURN(
      void* workspace,
      ScratchOf(context, PlainRmsNormBackwardWorkspaceBytes(
                             attributes.num_tokens, attributes.hidden)));
  const PlainRmsNormBackwardArgs args = {
      .d_x = d_x,
      .d_weight = d_weight,
      .d_y = d_y,
      .x = x,
      .rstd = rstd,
      .weight = weight,
      .d_residual = d_residual,
      .workspace = static_cast<float*>(workspace),
      .num_tokens = attributes.num_tokens,
      .hidden = attributes.hidden,
      .accumulate = attributes.accumulate,
      .fp32_weight = fp32_weight,
      .adds_one = attributes.adds_one};
  return ThenAmax(context, in,
                  [args, type = ElementTypeOf(context)](cudaStream_t stream) {
                    return LaunchPlainRmsNormBackward(args, type, stream);
                  });
}

CudaOp BindLayerNormForward(const CudaOpContext& context,
                            const Instruction& in) {
  const auto& attributes = std::get<NormAttributes>(in.attributes);
  const bool adds = AddsToStream(in.kind);
  // Operands that stand behind those of a residual.
  const size_t shift = adds ? 1 : 0;
  const PlainLayerNormForwardArgs args = {
      .residual = adds ? context.Output<void>(in, 0) : nullptr,
      .delta = adds ? context.Input<void>(in, 1) : nullptr,
      .y = context.Output<void>(in, shift),
      .mean = context.Output<float>(in, shift + 2),
      .rstd = context.Output<float>(in, shift + 1),
      .x = context.Input<void>(in, 0),
      .weight = context.Input<void>(in, shift + 1),
      .bias = context.Input<void>(in, shift + 2),
      .num_tokens = attributes.num_tokens,
      .hidden = attributes.hidden,
      .epsilon = static_cast<float>(attributes.epsilon),
      .fp32_weight = IsFp32(context, in.inputs[shift + 1])};
  if (!HasFastNorm(context, attributes)) {
    return ThenAmax(context, in,
                    [args, type = ElementTypeOf(context)](cudaStream_t stream) {
                      return LaunchPlainLayerNormForward(args, type, stream);
                    });
  }
  if (adds) {
    const ResidualLayerNormForwardBf16Args fast = {
        .residual = args.residual,
        .y = args.y,
        .mean = args.mean,
        .rstd = args.rstd,
        .x = args.x,
        .delta = args.delta,
        .weight = args.weight,
        .bias = args.bias,
        .num_tokens = args.num_tokens,
        .hidden = args.hidden,
        .epsilon = args.epsilon,
        .fp32_weight = args.fp32_weight,
        .amax = AmaxOf(context, in)};
    return [fast](cudaStream_t stream) {
      return LaunchResidualLayerNormForwardBf16(fast, stream);
    };
  }
  const LayerNormForwardBf16Args fast = {.y = args.y,
                                         .mean = args.mean,
                                         .rstd = args.rstd,
                                         .x = args.x,
                                         .weight = args.weight,
                                         .bias = args.bias,
                                         .num_tokens = args.num_tokens,
                                         .hidden = args.hidden,
                                         .epsilon = args.epsilon,
                                         .fp32_weight = args.fp32_weight,
                                         .amax = AmaxOf(context, in)};
  return [fast](cudaStream_t stream) {
    return LaunchLayerNormForwardBf16(fast, stream);
  };
}

absl::StatusOr<CudaOp> BindLayerNormBackward(const CudaOpContext& context,
                                             const Instruction& in) {
  const auto& attributes = std::get<NormAttributes>(in.attributes);
  const bool is_fast = HasFastNorm(context, attributes);
  ASSIGN_OR_RETURN(
      void* workspace,
      ScratchOf(context, is_fast
                             ? LayerNormBackwardBf16WorkspaceBytes(
                                   attributes.num_tokens, attributes.hidden)
                             : PlainLayerNormBackwardWorkspaceBytes(
                                   attributes.num_tokens, attributes.hidden)));
  const PlainLayerNormBackwardArgs args = {
      .d_x = context.Output<void>(in, 0),
      .d_weight = context.Output<float>(in, 1),
      .d_bias = context.Output<float>(in, 2),
      .d_y = context.Input<void>(in, 0),
      .x = context.Input<void>(in, 1),
      .mean = context.Input<float>(in, 3),
      .rstd = context.Input<float>(in, 2),
      .weight = context.Input<void>(in, 4),
      .d_residual = in.inputs.size() > 5 ? context.Input<void>(in, 5) : nullptr,
      .workspace = static_cast<float*>(workspace),
      .num_tokens = attributes.num_tokens,
      .hidden = attributes.hidden,
      .accumulate = attributes.accumulate,
      .fp32_weight = IsFp32(context, in.inputs[4])};
  if (!is_fast) {
    return ThenAmax(context, in,
                    [args, type = ElementTypeOf(context)](cudaStream_t stream) {
                      return LaunchPlainLayerNormBackward(args, type, stream);
                    });
  }
  const LayerNormBackwardBf16Args fast = {.d_x = args.d_x,
                                          .d_weight = args.d_weight,
                                          .d_bias = args.d_bias,
                                          .d_y = args.d_y,
                                          .x = args.x,
                                          .mean = args.mean,
                                          .rstd = args.rstd,
                                          .weight = args.weight,
                                          .d_residual = args.d_residual,
                                          .workspace = workspace,
                                          .num_tokens = args.num_tokens,
                                          .hidden = args.hidden,
                                          .accumulate = args.accumulate,
                                          .fp32_weight = args.fp32_weight,
                                          .amax = AmaxOf(context, in)};
  return CudaOp([fast](cudaStream_t stream) {
    return LaunchLayerNormBackwardBf16(fast, stream);
  });
}

CudaOp BindAdd(const CudaOpContext& context, const Instruction& in) {
  const auto& attributes = std::get<ElementwiseAttributes>(in.attributes);
  const int64_t num_elements = attributes.rows * attributes.cols;
  void* out = context.Output<void>(in, 0);
  const void* a = context.Input<void>(in, 0);
  const void* b = context.Input<void>(in, 1);
  if (IsBf16(context)) {
    const AddBf16Args args = {
        .out = out, .a = a, .b = b, .num_elements = num_elements};
    return [args](cudaStream_t stream) { return LaunchAddBf16(args, stream); };
  }
  const PlainAddArgs args = {
      .out = out, .a = a, .b = b, .num_elements = num_elements};
  return [args](cudaStream_t stream) {
    return LaunchPlainAdd(args, ElementType::kFloat32, stream);
  };
}

// Gradients of weights are fp32 in either precision, and their buffers say so.
absl::StatusOr<CudaOp> BindGemm(const CudaOpContext& context,
                                const Instruction& in) {
  GemmAttributes attributes = std::get<GemmAttributes>(in.attributes);
  attributes.bias = AddsBias(attributes, context.coordinates);
  attributes.bias_once = false;
  const Buffer& c = context.program->buffers[in.outputs.at(0)];
  ASSIGN_OR_RETURN(
      const CudaGemm* gemm,
      context.kernels->Gemm(attributes, ElementTypeOf(context),
                            /*fp32_output=*/c.dtype == DType::kFloat32));
  ASSIGN_OR_RETURN(void* workspace,
                   ScratchOf(context, gemm->workspace_bytes()));
  return CudaOp([gemm, workspace, c = context.Output<void>(in, 0),
                 a = context.Input<void>(in, 0), b = context.Input<void>(in, 1),
                 bias = attributes.bias ? context.Input<void>(in, 2)
                                        : nullptr](cudaStream_t stream) {
    return gemm->Run(c, a, b, bias, workspace, stream);
  });
}

absl::StatusOr<CudaOp> BindBiasGradient(const CudaOpContext& context,
                                        const Instruction& in) {
  const auto& attributes = std::get<ElementwiseAttributes>(in.attributes);
  ASSIGN_OR_RETURN(void* workspace,
                   ScratchOf(context, PlainBiasGradientWorkspaceBytes(
                                          attributes.rows, attributes.cols)));
  const PlainBiasGradientArgs args = {
      .d_bias = context.Output<float>(in, 0),
      .d_y = context.Input<void>(in, 0),
      .workspace = static_cast<float*>(workspace),
      .num_rows = attributes.rows,
      .num_cols = attributes.cols,
      .accumulate = attributes.accumulate};
  return CudaOp([args, type = ElementTypeOf(context)](cudaStream_t stream) {
    return LaunchPlainBiasGradient(args, type, stream);
  });
}

// The halves of a fused [tokens, 2F] projection.
struct GateUp {
  Bf16Rows gate;
  Bf16Rows up;
};
GateUp HalvesOf(void* gate_up, int64_t ffn_hidden) {
  auto* data = static_cast<uint16_t*>(gate_up);
  return {.gate = {data, 2 * ffn_hidden},
          .up = {data + ffn_hidden, 2 * ffn_hidden}};
}

GluGate GateOf(const Instruction& in) {
  const bool is_geglu =
      in.kind == OpKind::kGegluForward || in.kind == OpKind::kGegluBackward;
  return is_geglu ? GluGate::kGelu : GluGate::kSilu;
}

GeluForm FormOf(const ElementwiseAttributes& attributes) {
  return attributes.erf ? GeluForm::kErf : GeluForm::kTanh;
}

CudaOp BindSwigluForward(const CudaOpContext& context, const Instruction& in) {
  const auto& attributes = std::get<ElementwiseAttributes>(in.attributes);
  void* activation = context.Output<void>(in, 0);
  void* gate_up = context.Input<void>(in, 0);
  if (IsBf16(context)) {
    const GateUp halves = HalvesOf(gate_up, attributes.cols);
    const SwigluForwardBf16Args args = {
        .activation = {activation, attributes.cols},
        .gate = halves.gate,
        .up = halves.up,
        .num_tokens = attributes.rows,
        .ffn_hidden = attributes.cols,
        .kind = GateOf(in),
        .amax = AmaxOf(context, in)};
    return [args](cudaStream_t stream) {
      return LaunchSwigluForwardBf16(args, stream);
    };
  }
  const PlainSwigluForwardArgs args = {.activation = activation,
                                       .gate_up = gate_up,
                                       .num_tokens = attributes.rows,
                                       .ffn_hidden = attributes.cols,
                                       .gate = GateOf(in)};
  return ThenAmax(context, in, [args](cudaStream_t stream) {
    return LaunchPlainSwigluForward(args, ElementType::kFloat32, stream);
  });
}

CudaOp BindSwigluBackward(const CudaOpContext& context, const Instruction& in) {
  const auto& attributes = std::get<ElementwiseAttributes>(in.attributes);
  void* d_gate_up = context.Output<void>(in, 0);
  void* gate_up = context.Input<void>(in, 0);
  void* d_activation = context.Input<void>(in, 1);
  if (IsBf16(context)) {
    const GateUp halves = HalvesOf(gate_up, attributes.cols);
    const GateUp d_halves = HalvesOf(d_gate_up, attributes.cols);
    const SwigluBackwardBf16Args args = {
        .d_gate = d_halves.gate,
        .d_up = d_halves.up,
        .activation = {},
        .gate = halves.gate,
        .up = halves.up,
        .d_activation = {d_activation, attributes.cols},
        .num_tokens = attributes.rows,
        .ffn_hidden = attributes.cols,
        .kind = GateOf(in),
        .amax = AmaxOf(context, in)};
    return [args](cudaStream_t stream) {
      return LaunchSwigluBackwardBf16(args, stream);
    };
  }
  const PlainSwigluBackwardArgs args = {.d_gate_up = d_gate_up,
                                        .gate_up = gate_up,
                                        .d_activation = d_activation,
                                        .num_tokens = attributes.rows,
                                        .ffn_hidden = attributes.cols,
                                        .gate = GateOf(in)};
  return ThenAmax(context, in, [args](cudaStream_t stream) {
    return LaunchPlainSwigluBackward(args, ElementType::kFloat32, stream);
  });
}

CudaOp BindGeluForward(const CudaOpContext& context, const Instruction& in) {
  const auto& attributes = std::get<ElementwiseAttributes>(in.attributes);
  const int64_t num_elements = attributes.rows * attributes.cols;
  void* y = context.Output<void>(in, 0);
  const void* x = context.Input<void>(in, 0);
  if (IsBf16(context)) {
    const GeluForwardBf16Args args = {.y = y,
                                      .x = x,
                                      .num_elements = num_elements,
                                      .form = FormOf(attributes)};
    return [args](cudaStream_t stream) {
      return LaunchGeluForwardBf16(args, stream);
    };
  }
  const PlainGeluForwardArgs args = {
      .y = y, .x = x, .num_elements = num_elements, .form = FormOf(attributes)};
  return [args](cudaStream_t stream) {
    return LaunchPlainGeluForward(args, ElementType::kFloat32, stream);
  };
}

CudaOp BindGeluBackward(const CudaOpContext& context, const Instruction& in) {
  const auto& attributes = std::get<ElementwiseAttributes>(in.attributes);
  const int64_t num_elements = attributes.rows * attributes.cols;
  void* d_x = context.Output<void>(in, 0);
  const void* x = context.Input<void>(in, 0);
  const void* d_y = context.Input<void>(in, 1);
  if (IsBf16(context)) {
    const GeluBackwardBf16Args args = {.d_x = d_x,
                                       .y = nullptr,
                                       .x = x,
                                       .d_y = d_y,
                                       .num_elements = num_elements,
                                       .form = FormOf(attributes)};
    return [args](cudaStream_t stream) {
      return LaunchGeluBackwardBf16(args, stream);
    };
  }
  const PlainGeluBackwardArgs args = {.d_x = d_x,
                                      .x = x,
                                      .d_y = d_y,
                                      .num_elements = num_elements,
                                      .form = FormOf(attributes)};
  return [args](cudaStream_t stream) {
    return LaunchPlainGeluBackward(args, ElementType::kFloat32, stream);
  };
}

}  // namespace

void RegisterCudaLayerOps(CudaBinders& binders) {
  binders.Bind(OpKind::kRmsNormForward, BindRmsNormForward);
  binders.Bind(OpKind::kResidualRmsNormForward, BindResidualRmsNormForward);
  binders.Bind(OpKind::kRmsNormBackward, BindRmsNormBackward);
  binders.Bind(OpKind::kLayerNormForward, BindLayerNormForward);
  binders.Bind(OpKind::kResidualLayerNormForward, BindLayerNormForward);
  binders.Bind(OpKind::kLayerNormBackward, BindLayerNormBackward);
  binders.Bind(OpKind::kAdd, BindAdd);
  binders.Bind(OpKind::kGemm, BindGemm);
  binders.Bind(OpKind::kBiasGradient, BindBiasGradient);
  binders.Bind(OpKind::kSwigluForward, BindSwigluForward);
  binders.Bind(OpKind::kSwigluBackward, BindSwigluBackward);
  binders.Bind(OpKind::kGegluForward, BindSwigluForward);
  binders.Bind(OpKind::kGegluBackward, BindSwigluBackward);
  binders.Bind(OpKind::kGeluForward, BindGeluForward);
  binders.Bind(OpKind::kGeluBackward, BindGeluBackward);
}

}  // namespace millrace
